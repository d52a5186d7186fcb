"""What is the case now, noted once a tick by whichever worker comes first: queues, replicas, memory."""

from __future__ import annotations

from collections import Counter

from django.db.models import Count, Min

from inference import clock
from inference.figures.ledger import at, tick_of
from inference.figures.tallies import Tally
from inference.models import ENDED, Figure, Grain, Job, Status, Worker

SERVICE = ""  # the model of what is counted of the whole service


def sample() -> None:
    tick = {"grain": Grain.TICK, "start": at(tick_of(clock.time_s())), "model": SERVICE}
    if not Figure.objects.filter(**tick).exists():
        Figure.objects.get_or_create(**tick, defaults={"tally": taken()})


def taken() -> Tally:
    """By model, but for replicas: `now` adds up and is divided by its samples, of `most` the largest stays."""
    queued, ages = queues()
    now = {"samples": 1, "queued": queued, "running": running(), "oldest_s": ages, **_of_workers()}
    return {"now": now, "most": {"queued": queued, "oldest_s": ages}}


def queues() -> tuple[dict[str, int], dict[str, float]]:
    """By model: jobs that wait, and the age of the oldest in seconds. Of those in parts these are what waits."""
    jobs = Job.objects.filter(parts=None, status=Status.QUEUED).order_by().values_list("model")
    queued, ages = {}, {}
    for model, count, made in jobs.annotate(Count("pk"), Min("created_at")):
        queued[model], ages[model] = count, max(0.0, clock.time_s() - made.timestamp())
    return queued, ages


def running() -> dict[str, int]:
    """By itself: only one status at a time is its own index used."""
    jobs = Job.objects.filter(parts=None, status=Status.RUNNING).order_by().values_list("model")
    return dict(jobs.annotate(Count("pk")))


def _of_workers() -> Tally:
    """Bytes on devices by model, and replicas."""
    memory: Counter[str] = Counter()
    replicas = {"ready": 0, "busy": 0}
    present = Worker.objects.exclude(state__in=ENDED)
    for worker in present.only("replicas", "replicas_ready", "replicas_busy"):
        replicas["ready"] += worker.replicas_ready
        replicas["busy"] += worker.replicas_busy
        for replica in worker.replicas.values():
            memory.update(replica.get("memory", {}))
    return {"memory": dict(memory), "replicas": replicas}
