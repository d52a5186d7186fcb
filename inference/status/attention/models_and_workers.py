"""Attention to the models file, the models and the workers.

The items report which models are not served by which workers, and whether an operator wants it so. They also report
that the workers do not remove old jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from inference import clock
from inference.catalog import lookup
from inference.figures.timeline_marks import MarkKind
from inference.models import Mark, PausedModel, Worker, WorkerState
from inference.status import readiness, workers
from inference.status.attention.item import AttentionItem, Key
from inference.status.readiness import Cause, Reason

BROKER: Key = ("BrokerAway", ())
OFTEN = 5  # ends of a replica's process within the minutes that its worker counts; a single poison job causes fewer


def find_refused_models_file(living: Iterable[Worker]) -> Iterator[AttentionItem]:
    problems = {lookup.find_file_problem(), *(worker.catalog.problem for worker in living)}
    known = lookup.get_catalog_or_empty()
    for problem in sorted(filter(None, problems)):
        text = f"{problem} {'The models do not change' if known else 'No model is served here'} until you correct it."
        todo = f"Correct the line that it names.{' The models that ran before go on.' if known else ''}"
        yield AttentionItem(code="ModelsFileRefused", text=text, todo=todo)


def find_unserved_models(reasons: Mapping[str, Reason], living: Sequence[Worker]) -> Iterator[AttentionItem]:
    missed = list(_find_missed_workers(living))
    for name, why in reasons.items():
        yield AttentionItem(
            code="ModelUnserved",
            text=f"No worker serves {name}: {why.text}",
            about=("model", name),
            todo=_choose_todo(name, why.cause, living, missed),
            causes=tuple(_find_causes(name, why.cause, living, missed)),
        )


def _find_causes(name: str, cause: Cause, living: Iterable[Worker], missed: Iterable[Worker]) -> Iterator[Key]:
    """Yield the keys of the items that explain why no worker serves the model.

    A drained worker whose row lists no replica may have had the model.
    """
    for worker in living:
        why_not = readiness.find_worker_unready_reason(worker, name)
        may_have = cause is Cause.DRAINED and worker.is_to_rest and not worker.replicas
        if cause in CODE_OF and (may_have or (why_not and why_not.cause is cause)):
            yield CODE_OF[cause], ("worker", str(worker.pk))
    if cause is Cause.ABSENT:
        for worker in missed:
            if name in worker.model_names:
                yield "WorkerGone", ("worker", str(worker.pk))


CODE_OF = {Cause.CUT_OFF: "WorkerCutOff", Cause.FAILED: "WorkerDegraded", Cause.DRAINED: "WorkerDrained"}
TODO_OF = {
    Cause.LOADING: "Wait until it is loaded. If that takes too long, read the worker's journal.",
    Cause.CUT_OFF: "Check the broker and the network to it. The worker connects again by itself.",
    Cause.FAILED: "Correct what the message names. The worker tries again by itself.",
    Cause.DRAINED: "Resume a worker of the model on the worker's page.",
}


def _choose_todo(name: str, cause: Cause, living: Sequence[Worker], missed: Iterable[Worker]) -> str:
    if todo := TODO_OF.get(cause):
        return todo
    if any(name in worker.model_names for worker in missed):
        return "Start the worker again: systemctl start inference-worker. Its journal says why it ended."
    if living:
        return "Start a worker with the model in its --models. The running workers were started for other models."
    return "Start a worker: systemctl start inference-worker."


def find_paused_models() -> Iterator[AttentionItem]:
    """Yield an item for each paused model, however long ago it was paused, because its clients wait."""
    for pause in PausedModel.objects.select_related("paused_by"):
        by = f" by {pause.paused_by}" if pause.paused_by else ""
        yield AttentionItem(
            code="ModelPaused",
            about=("paused", pause.model),
            text=f"{pause.model} has been paused since {pause.paused_at:%Y-%m-%d %H:%M:%S} UTC{by}: its jobs wait.",
            todo="Resume the model on its page.",
        )


def find_gone_workers(living: Sequence[Worker]) -> Iterator[AttentionItem]:
    """Yield an item for each worker that is gone or silent, until one of the same name is back, or for an hour."""
    for worker in _find_missed_workers(living):
        served = ", ".join(worker.model_names) or "nothing"
        yield AttentionItem(
            code="WorkerGone",
            about=("worker", str(worker.pk)),
            text=f"{worker.name} has been gone since {worker.heartbeat_at:%H:%M:%S} UTC. It served {served}.",
            todo="Read its journal (journalctl -u inference-worker), then start it again.",
        )


def _find_missed_workers(living: Sequence[Worker]) -> Iterable[Worker]:
    there = {worker.name for worker in living}
    lost = workers.select_silent_workers() | Worker.objects.filter(state=WorkerState.GONE)
    now, shown = clock.get_database_time(), workers.ENDED_SHOWN
    # A heartbeat after `now` is from before the clock was set back.
    recent = lost.filter(heartbeat_at__range=(now - shown, now + shown)).order_by("heartbeat_at")
    return {worker.name: worker for worker in recent if worker.name not in there}.values()


def find_worker_items(living: Iterable[Worker]) -> Iterator[AttentionItem]:
    for worker in living:
        about = ("worker", str(worker.pk))
        has_begun = worker.state in workers.SERVING or (worker.state == WorkerState.STARTING and worker.model_names)
        if not worker.connected and has_begun:
            yield AttentionItem(
                code="WorkerCutOff",
                text=f"{worker.name} is not connected to the broker.",
                about=about,
                todo=TODO_OF[Cause.CUT_OFF],
                causes=(BROKER,),
            )
        if worker.error and worker.state == WorkerState.DEGRADED:
            text = f"{worker.name} does not serve all of its models: {worker.error[:500]}"
            yield AttentionItem(code="WorkerDegraded", text=text, about=about, todo=TODO_OF[Cause.FAILED])
        if worker.is_to_rest:
            text = f"{worker.name} is drained and takes no jobs."
            yield AttentionItem(code="WorkerDrained", text=text, about=about, todo="Resume it on its page, or stop it.")
        yield from _find_replica_items(worker)


def _find_replica_items(worker: Worker) -> Iterator[AttentionItem]:
    """Yield items for replicas that end often, and for devices that are given no work."""
    about = ("worker", str(worker.pk))
    for index, replica in sorted(worker.replicas.items()):
        if replica.ended >= OFTEN:
            yield AttentionItem(
                code="ReplicaCrashes",
                about=about,
                text=f"Replica {index} of {worker.name}, on {replica.device},"
                f" ended {replica.ended} times within minutes.",
                todo="Read its journal. The cause may be the kernel's OOM killer, a time limit, or jobs that crash it.",
            )
    withdrawn = {replica.device: replica.withdrawn_s for replica in worker.replicas.values() if replica.withdrawn_s}
    for device, left_s in withdrawn.items():
        yield AttentionItem(
            code="DeviceWithdrawn",
            about=about,
            text=f"{device} of {worker.name} gets no work for {left_s} s: what failed there succeeded elsewhere.",
            todo="Check the device (nvidia-smi, and Xid in dmesg). The worker tries it again by itself.",
        )


def find_stopped_retention() -> Iterator[AttentionItem]:
    """Yield an item if the last sweep found that it must not remove old jobs."""
    for stopped in Mark.objects.filter(kind=MarkKind.RETENTION)[:1]:
        yield AttentionItem(
            code="RetentionStopped",
            text=stopped.text,
            todo="Check that clock. It may be right after a long stop, or after JOB_RETENTION_DAYS was lowered."
            " If it is right, remove the jobs: manage.py remove_old_jobs --force.",
        )
