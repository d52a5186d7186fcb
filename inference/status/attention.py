"""What needs somebody's attention now, in words, with the thing to do. Nothing when all is well.

`CODES` are also the names of the alerts in deploy/prometheus/rules.yml, for who watches from outside.
"""

from __future__ import annotations

import datetime
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from django.utils import timezone

from inference.catalog import lookup
from inference.figures import sample, series
from inference.models import Figure, Grain, Status, Worker, WorkerState
from inference.status import health, workers
from inference.store import wishes

SLOW_S = 0.25  # of an answer to the smallest question
LEFT_BYTES, LEFT_SHARE, PLENTY_BYTES = 2**30, 0.05, 20 * 2**30  # of a disk
GROWN = 10  # jobs, and half as many again as there were
SEEN = datetime.timedelta(minutes=15)  # for which a queue is looked back at
STUCK_S = 30.0  # that a job waits while replicas do nothing
RECENT, USUAL = datetime.timedelta(minutes=5), datetime.timedelta(days=1)  # of failures
FEW, ODD_SHARE, ODD_TIMES = 5, 0.05, 3  # failures that are not worth a word: fewer, or no larger a share
CODES = (
    "DatabaseAway", "DatabaseSlow", "BrokerAway", "BrokerSlow", "DiskFills", "ModelsFileRefused", "ModelUnserved",
    "WorkerGone", "WorkerCutOff", "WorkerDegraded", "QueueGrows", "QueueStuck", "FailuresUnusual",
)  # fmt: skip
GONE_SHOWN = datetime.timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    code: str
    text: str
    todo: str
    about: tuple[str, ...] = ()  # ("model", name), ("worker", id), or ("failed", model, code)


def items() -> list[Item]:
    """The gravest first. Raises nothing of a database or broker that is away: that is what it tells then."""
    found = [*_broker(), *_disk()]
    try:
        return [*_database(), *found, *_of_rows()]
    except (DatabaseError, InterfaceError) as error:
        away = Item(
            code="DatabaseAway", text=f"The database does not answer: {error}".strip(),
            todo="Start it, or look at the network between; everything resumes by itself.",
        )  # fmt: skip
        return [away, *found]


def _database() -> Iterator[Item]:
    began_at = time.monotonic()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    if (took_s := time.monotonic() - began_at) > SLOW_S:
        text = f"The database took {took_s:.1f} s to answer nothing."
        yield Item(code="DatabaseSlow", text=text, todo="Look at its load, its locks and its disk.")


def _broker() -> Iterator[Item]:
    began_at = time.monotonic()
    problems = list(health.broker_problems())
    took_s = time.monotonic() - began_at
    for problem in problems:
        todo = "Start it, or look at the network between; it mends itself within a minute of its return."
        yield Item(code="BrokerAway", text=problem, todo=todo)
    if not problems and took_s > SLOW_S:
        yield Item(
            code="BrokerSlow", text=f"The broker took {took_s:.1f} s to answer nothing.",
            todo="Look at its load and its memory, and at the network between.",
        )  # fmt: skip


def _disk() -> Iterator[Item]:
    """Of this host."""
    folders = {Path(settings.DATA_DIR)}
    if connection.vendor == "sqlite":
        folders.add(Path(connection.settings_dict["NAME"]).parent)
    for folder in sorted(folder for folder in folders if folder.is_dir()):
        usage = shutil.disk_usage(folder)
        share = usage.free / usage.total
        if usage.free < LEFT_BYTES or (share < LEFT_SHARE and usage.free < PLENTY_BYTES):
            yield Item(
                code="DiskFills", text=f"The disk of {folder} has {usage.free / 2**20:,.0f} MiB left, {share:.0%}.",
                todo="Make room, or keep finished jobs for fewer days (JOB_RETENTION_DAYS).",
            )  # fmt: skip


def _of_rows() -> Iterator[Item]:
    living = list(workers.living())
    paused = wishes.paused()
    unserved = {name: why for name, why in health.unserved(living) if name not in paused}
    yield from _file(living)
    for name, why in unserved.items():
        yield Item(
            code="ModelUnserved", text=f"Nobody serves {name}: {why}", about=("model", name),
            todo="Mend what it says; the worker tries again by itself." if living else
            "Start a worker: systemctl start inference-worker.",
        )  # fmt: skip
    yield from _gone(living)
    yield from _unwell(living)
    yield from _queues(living, unserved.keys(), paused)
    yield from _failures()


def _file(living: Iterable[Worker]) -> Iterator[Item]:
    problems = {lookup.problem(), *((worker.catalog or {}).get("problem", "") for worker in living)}
    for problem in sorted(filter(None, problems)):
        text = f"{problem} Nothing changes before that is put right."
        yield Item(code="ModelsFileRefused", text=text, todo="Mend the line that it names; what ran before goes on.")


def _gone(living: Sequence[Worker]) -> Iterator[Item]:
    """Until one of its name is back, or for an hour."""
    now = timezone.now()
    there = {worker.name for worker in living}
    recent = Worker.objects.filter(heartbeat_at__gte=now - GONE_SHOWN).order_by("-heartbeat_at")
    lost = [worker for worker in recent if worker.state == WorkerState.GONE or _is_silent(worker, now)]
    for worker in {worker.name: worker for worker in reversed(lost) if worker.name not in there}.values():
        served = ", ".join(worker.model_names) or "nothing"
        yield Item(
            code="WorkerGone", about=("worker", str(worker.pk)),
            text=f"{worker.name} is gone since {worker.heartbeat_at:%H:%M:%S} UTC. It served {served}.",
            todo="Look into its journal (journalctl -u inference-worker), and start it again.",
        )  # fmt: skip


def _is_silent(worker: Worker, now: datetime.datetime) -> bool:
    silent = now - worker.heartbeat_at > datetime.timedelta(seconds=settings.WORKER_SILENT_S)
    return worker.state in workers.PRESENT and silent


def _unwell(living: Iterable[Worker]) -> Iterator[Item]:
    for worker in living:
        about = ("worker", str(worker.pk))
        if not worker.connected and worker.state in workers.SERVING:
            yield Item(
                code="WorkerCutOff", text=f"{worker.name} is not connected to the broker.", about=about,
                todo="Look at the broker, and at the network between: it connects again by itself.",
            )  # fmt: skip
        if worker.error and worker.state == WorkerState.DEGRADED:
            text = f"{worker.name} does not serve all of its models: {worker.error[:500]}"
            todo = "Mend what it says; the worker tries again by itself."
            yield Item(code="WorkerDegraded", text=text, about=about, todo=todo)


def _queues(living: Sequence[Worker], unserved: Collection[str], paused: Collection[str]) -> Iterator[Item]:
    queued, ages = sample.queues()
    busy = sum(worker.replicas_busy for worker in living)
    past = _past_queues()
    for model, count in queued.items():
        age_s = ages.get(model, 0.0)
        waits = f"{count:,} jobs of {model} wait, the oldest for {age_s:.0f} s"
        if lowest := _grown_since(count, [(at, queues.get(model, 0)) for at, queues in past]):
            at, before = lowest
            todo = "Look why no replica runs them: what is said here of its worker, its models and the broker."
            if model in paused:
                todo = "It is paused: resume it on its page."
            elif busy:
                todo = f"More comes in than is done: more workers or replicas, or manage.py tune {model}."
            text = f"{waits}; at {at:%H:%M:%S} UTC there were {before:,}."
            yield Item(code="QueueGrows", text=text, todo=todo, about=("model", model))
        elif age_s > STUCK_S and not busy and model not in {*unserved, *paused}:
            todo = (
                "Messages do not reach the workers: look at the broker. It mends itself within a minute of its return."
            )
            yield Item(code="QueueStuck", text=f"{waits}, and no replica is busy.", todo=todo, about=("model", model))


def _past_queues() -> list[tuple[datetime.datetime, Mapping[str, int]]]:
    ticks = Figure.objects.filter(grain=Grain.TICK, model=sample.SERVICE, start__gte=timezone.now() - SEEN)
    return [
        (at, tally["now"].get("queued", {}))
        for at, tally in ticks.order_by("start").values_list("start", "tally")
        if tally.get("now", {}).get("samples")  # else nobody looked
    ]


def _grown_since(count: int, past: Sequence[tuple[datetime.datetime, int]]) -> tuple[datetime.datetime, int] | None:
    """The last moment at which there were fewest; none where it does not grow, or not any more."""
    if not past or count < 0.9 * max(before for _, before in past):
        return None
    at, lowest = min(reversed(past), key=lambda moment: moment[1])
    return (at, lowest) if count >= lowest + max(GROWN, lowest / 2) else None


def _failures() -> Iterator[Item]:
    now = timezone.now()
    recent, usual = series.ends_since(now - RECENT), series.ends_since(now - USUAL)
    for model, ends in recent.items():
        before = usual.get(model, Counter()) - ends
        for end, count in ends.items():
            code = end.removeprefix(f"{Status.FAILED} ")
            share, usually = count / ends.total(), before[end] / before.total() if before.total() else 0.0
            if code != end and count >= FEW and share > max(ODD_SHARE, ODD_TIMES * usually):
                yield Item(
                    code="FailuresUnusual", about=("failed", model, code), todo=_todo_of(code),
                    text=f"{count:,} jobs of {model} failed with {code} in the last minutes, {share:.0%} of those that"
                    f" ended; over the day {usually:.0%}.",
                )  # fmt: skip


def _todo_of(code: str) -> str:
    known = {
        "out_of_memory": "Lower max_length or max_batch_tokens of the model in models.toml.",
        "timed_out": "Inputs take longer than time_limit_s, or a device hangs: the worker's log has the stack.",
        "lost": "Workers die with these jobs: look for the kernel's OOM killer in the journal.",
        "crashed": "These inputs end the process that runs them: its log has the stack.",
    }
    return known.get(code, "The newest of them says why, in full.")
