"""Samples of the present state (queues, replicas, memory), taken once a tick by the worker that comes first."""

from __future__ import annotations

from collections import Counter

from django.db.models import Count, Min

from inference import clock
from inference.figures.tallies import Tally
from inference.figures.tally_rows import floor_to_tick, make_datetime
from inference.models import ENDED, Figure, Grain, Job, Status, Worker

SERVICE = ""  # the model name of figures of the whole service


def record_sample() -> None:
    tick = {
        "grain": Grain.TICK,
        "start": make_datetime(floor_to_tick(clock.estimate_now_s())),
        "model": SERVICE,
    }
    if not Figure.objects.filter(**tick).exists():
        Figure.objects.get_or_create(**tick, defaults={"tally": make_state_tally()})


def make_state_tally() -> Tally:
    """Return a sample of the present state, by model except for replicas.

    `now` is summed over samples and divided by their number. Of `most` the largest value is kept.
    """
    queued, ages = count_queued_jobs()
    now = {"samples": 1, "queued": queued, "running": count_running_jobs(), "oldest_s": ages, **_sample_workers()}
    return {"now": now, "most": {"queued": queued, "oldest_s": ages}}


def count_queued_jobs() -> tuple[dict[str, int], dict[str, float]]:
    """Return by model the number of jobs that wait, and the age of the oldest in seconds.

    A job that runs in parts is counted by its parts.
    """
    jobs = Job.objects.filter(parts=None, status=Status.QUEUED).order_by().values_list("model")
    queued, ages = {}, {}
    for model, count, made in jobs.annotate(Count("pk"), Min("created_at")):
        queued[model], ages[model] = count, max(0.0, clock.estimate_now_s() - made.timestamp())
    return queued, ages


def count_running_jobs() -> dict[str, int]:
    """Count the running jobs by model.

    This is a query of its own, as the database uses the index of a status for one status at a time only.
    """
    jobs = Job.objects.filter(parts=None, status=Status.RUNNING).order_by().values_list("model")
    return dict(jobs.annotate(Count("pk")))


def _sample_workers() -> Tally:
    """Return the bytes on devices by model, and the number of replicas that are ready and busy."""
    memory: Counter[str] = Counter()
    replicas = {"ready": 0, "busy": 0}
    present = Worker.objects.exclude(state__in=ENDED)
    for worker in present.only("replicas", "replicas_ready", "replicas_busy"):
        replicas["ready"] += worker.replicas_ready
        replicas["busy"] += worker.replicas_busy
        for replica in worker.replicas.values():
            memory.update(replica.memory)
    return {"memory": dict(memory), "replicas": replicas}
