"""Attention to jobs, and to notices to clients, that wait too long, are too many, or fail more than usual."""

from __future__ import annotations

import datetime
import functools
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from django.db.models import Exists, OuterRef

from inference import clock
from inference.catalog import lookup
from inference.errors import ContextLengthExceeded, InvalidInput, Overloaded, QueueFull
from inference.fields.ids import make_first_id
from inference.figures import sample, series
from inference.models import TERMINAL, Bulk, Figure, Grain, Job, Status, Webhook, WebhookState, Worker
from inference.status import queue_position, workers
from inference.status.attention.item import AttentionItem
from inference.status.attention.models_and_workers import BROKER
from inference.telemetry.plurals import format_count
from inference.webhooks.delivery import parse_host

GROWN = 10  # jobs by which a queue has grown at least, or half of its shortest length if that is more
SEEN = datetime.timedelta(minutes=15)  # age up to which growth is reported however quickly jobs are done
STUCK_S = 30.0  # seconds that a job waits while no replica is busy, or that a notice is overdue
MINUTE = datetime.timedelta(minutes=1)
RECENT, HOUR, DAY = datetime.timedelta(minutes=5), datetime.timedelta(hours=1), datetime.timedelta(days=1)
FEW, ODD_SHARE, ODD_TIMES = 5, 0.05, 3  # of reported failures: least number, share, multiple of the usual share
HIGH_SHARE, MOST = 0.2, 0.5  # shares of recent jobs above which failures of an engine, or all failures, are reported
OF_CLIENTS = {series.FAILED + error.code for error in (InvalidInput, ContextLengthExceeded)}  # failures due to inputs
ENOUGH = 20  # jobs that a share is computed from at least
CHANCE = 0.05  # that failures go on although the newest jobs have none: below it they are over
LOOKED_AT = 1000  # notices that are read at most
Ends = Counter[str]  # number of jobs by outcome
TimedEnds = Sequence[tuple[datetime.datetime, Ends]]  # start of each count, and its outcomes


def find_long_queues(living: Sequence[Worker], *, quiet: Collection[str]) -> Iterator[AttentionItem]:
    """Yield items for queues that are full, have grown or are stuck, and for queues of models that no models file has.

    `quiet` are the models for which it is known why nothing runs.
    """
    queued, ages = sample.count_queued_jobs()
    refused, past = _count_refusals(), _read_past_queues()
    late = set(
        workers.select_living_workers().filter(workers.make_late_heartbeat_condition()).values_list("pk", flat=True)
    )
    known = lookup.get_catalog_or_empty()
    removed = queued.keys() - known.keys() - {name for worker in living for name in worker.model_names} if known else ()
    for model in sorted(queued.keys() | refused.keys()):
        count, age_s = queued.get(model, 0), ages.get(model, 0.0)
        able = [worker for worker in living if model in worker.model_names and model not in quiet]
        heard_of = [worker for worker in able if worker.pk not in late]
        unheard = [] if heard_of else able
        busy = any(worker.replicas_busy for worker in living if worker.pk not in late)
        reasons = (("ModelUnserved", ("model", model)), ("ModelPaused", ("paused", model)))
        item = functools.partial(
            AttentionItem,
            about=("model", model),
            causes=reasons if model in quiet else (BROKER,),
            todo=_choose_growth_todo(model, heard_of, unheard),
        )
        waits = (
            f"{format_count(count, 'job')} of {model} {'waits' if count == 1 else 'wait'}, the oldest for {age_s:.0f} s"
        )
        if model in removed:
            if age_s > STUCK_S:
                todo = "Add the model to models.toml again, or cancel the jobs in the admin."
                text = f"{waits}, and the models file no longer lists it."
                yield AttentionItem(code="ModelUnserved", text=text, todo=todo, about=("model", model))
        elif full := _describe_full_queue(model, count, refused.get(model, 0)):
            yield item(code="QueueFull", text=full)
        elif lowest := _find_growth(count, age_s, [(at, queues.get(model, 0)) for at, queues in past]):
            at, before = lowest
            yield item(code="QueueGrows", text=f"{waits}; at {at:%H:%M:%S} UTC there were {before:,.0f}.")
        elif age_s > STUCK_S and not busy and model not in quiet and not unheard:
            todo = "Messages do not reach the workers. Check the broker: jobs run within a minute of its return."
            yield item(code="QueueStuck", text=f"{waits}, and no replica is busy.", todo=todo)


def _choose_growth_todo(model: str, heard_of: Iterable[Worker], unheard: Collection[Worker]) -> str:
    """Return what an operator should do when more jobs of a model wait.

    `heard_of` are its workers that were heard lately. `unheard` are all its workers if none of them was, and else
    empty.
    """
    if any(worker.replicas_busy for worker in heard_of):
        return f"Jobs arrive faster than the workers run them. Add workers or replicas, or run manage.py tune {model}."
    if unheard:
        names = ", ".join(sorted({worker.name for worker in unheard}))
        return f"No heartbeat came from {names} for some seconds. Wait: the worker returns, or is listed here as gone."
    return "Find out why no replica runs them: see the items of this list on the workers, the models and the broker."


def _count_refusals() -> dict[str, int]:
    """Return by model how many requests of the last minutes were refused because too many jobs waited.

    Models with fewer than `FEW` of them are left out.
    """
    refused = {
        model: sum(tally.get("refused", {}).get(error.code, 0) for error in (QueueFull, Overloaded))
        for model, tally in series.sum_figures_since(clock.get_database_time() - RECENT).items()
    }
    return {model: count for model, count in refused.items() if count >= FEW}


def _describe_full_queue(model: str, count: int, refused: int) -> str:
    """Return text on a queue that takes no more jobs, or refused requests in the last minutes; else an empty string."""
    spec, found = lookup.get_catalog_or_empty().get(model), []
    if spec and count >= spec.max_queued and (waiting := queue_position.count_jobs_above_low(model)) >= spec.max_queued:
        waits = format_count(waiting, "job", ("waits", "wait"))
        found = [f"The queue of {model} is full: {waits}, and max_queued is {spec.max_queued:,}."]
    if refused:
        were_refused = f"{format_count(refused, 'request', ('was', 'were'))} refused"
        found += [f"{were_refused} in the last minutes because too many jobs of {model} waited."]
    return " ".join(found)


def _read_past_queues() -> list[tuple[datetime.datetime, Mapping[str, float]]]:
    """Return the mean lengths of the queues in each stretch of the last day that was sampled, the oldest first."""
    grains, now = (Grain.TICK, Grain.TEN_MINUTES), clock.get_database_time()
    rows = Figure.objects.filter(grain__in=grains, model=sample.SERVICE, start__range=(now - DAY, now))
    looks = [(at, tally.get("now", {})) for at, tally in rows.order_by("start").values_list("start", "tally")]
    return [
        (at, {model: count / now["samples"] for model, count in now.get("queued", {}).items()})
        for at, now in looks
        if now.get("samples")
    ]


def _find_growth(
    count: int, age_s: float, past: Sequence[tuple[datetime.datetime, float]]
) -> tuple[datetime.datetime, float] | None:
    """Return the last moment at which the queue was shortest, and its length then, or None if it has not grown.

    A queue has not grown if not many more jobs wait now, or if their number falls. Growth that is older than some
    minutes is not reported while each job is soon done.
    """
    if not past:
        return None
    place, (at, lowest) = min(enumerate(past), key=lambda moment: (moment[1][1], -moment[0]))
    if count < 0.9 * max(before for _, before in past[place:]) or count < lowest + max(GROWN, lowest / 2):
        return None
    is_new = at >= clock.get_database_time() - SEEN
    return (at, lowest) if is_new or age_s > STUCK_S else None


def find_unusual_failures() -> Iterator[AttentionItem]:
    """Yield items for failures that are a large share of a model's recent jobs, for as long as they are.

    Failures that are several times as frequent as before they began are reported too, for a day.
    """
    now = clock.get_database_time()
    for model, ends in series.list_outcomes_since(now - DAY).items():
        last = _drop_ended_failures(_collect_last_ends(ends, now), ends)
        high = _find_high_failures(last)
        recent = last if high else _sum_ends(counts for start, counts in ends if start >= now - RECENT)
        for end, count in recent.items():
            code = end.removeprefix(series.FAILED)
            share, usual = count / recent.total(), _compute_usual_share(end, ends, now)
            is_unusual = count >= FEW and share > ODD_TIMES * usual
            if code != end and share > ODD_SHARE and (end in high or is_unusual):
                yield AttentionItem(
                    code="FailuresUnusual",
                    about=("failed", model, code),
                    todo=_choose_failure_todo(code),
                    text=f"{format_count(count, 'job')} of {model} failed with {code} in the last minutes:"
                    f" {share:.0%} of the jobs that ended, and {usual:.0%} before.",
                )


def _sum_ends(counts: Iterable[Ends]) -> Ends:
    total = Counter[str]()
    for each in counts:
        total.update(each)
    return total


def _collect_last_ends(ends: TimedEnds, now: datetime.datetime) -> Ends:
    """Return the outcomes of the last minutes, or of the last jobs of the hour if too few ended in these minutes.

    `ends` begins with the newest.
    """
    last = Counter[str]()
    for start, counts in ends:
        if start < now - HOUR or (start < now - RECENT and last.total() >= ENOUGH):
            break
        last.update(counts)
    return last


def _find_high_failures(ends: Ends) -> Ends:
    """Return the failures that are so large a share together that they are reported whatever is usual.

    Inputs that a model cannot read are the concern of the clients that send them. They count only if more than `MOST`
    of all jobs fail.
    """
    failed = Counter({end: count for end, count in ends.items() if end.startswith(series.FAILED)})
    of_engine = Counter({end: count for end, count in failed.items() if end not in OF_CLIENTS})
    for found, share in ((failed, MOST), (of_engine, HIGH_SHARE)):
        if found.total() >= FEW and found.total() > share * ends.total():
            return found
    return Counter()


def _drop_ended_failures(last: Ends, ends: TimedEnds) -> Ends:
    """Return the outcomes of the last jobs without the failures that the jobs since show to be over.

    At the share that such a failure has, as many jobs as have succeeded since would do so by chance alone. `ends`
    begins with the newest.
    """
    going_on = Counter[str]()
    for end, count in last.items():
        since = _count_successes_since(end, ends) if end.startswith(series.FAILED) else 0
        share = count / (last.total() - since)
        if (1 - share) ** since >= CHANCE:
            going_on[end] = count
    return going_on


def _count_successes_since(end: str, ends: TimedEnds) -> int:
    """Return how many jobs have succeeded since the newest row that counts this outcome."""
    rows = itertools.takewhile(lambda row: end not in row[1], ends)
    return sum(counts[Status.SUCCEEDED] for _, counts in rows)


def _compute_usual_share(end: str, ends: TimedEnds, now: datetime.datetime) -> float:
    """Return the share of this outcome before it became more frequent, whenever in the day that was.

    It is the least share among all jobs that ended more than 5, 10, 20, 40, … minutes ago.
    """
    shares, ago = [], RECENT
    while ago < DAY:
        before = _sum_ends(counts for start, counts in ends if start < now - ago)
        if before.total() >= ENOUGH:
            shares.append(before[end] / before.total())
        ago *= 2
    return min(shares, default=0.0)


def _choose_failure_todo(code: str) -> str:
    known = {
        "out_of_memory": "Lower max_length or max_batch_tokens of the model in models.toml.",
        "timed_out": "Inputs take longer than time_limit_s, or a device hangs. The worker's log has the stack.",
        "lost": "Workers died while they ran these jobs. Look for the kernel's OOM killer in the journal.",
        "crashed": "These inputs crash the process that runs them. Its log has the stack.",
    }
    return known.get(code, "Open the newest of these jobs: it has the full error.")


def find_undelivered_webhooks() -> Iterator[AttentionItem]:
    """Yield items for notices that a host does not take, and for notices that are overdue.

    Only pending notices count. Those that were delivered or given up need no attention.
    """
    now = clock.get_database_time()
    pending = Webhook.objects.filter(state=WebhookState.PENDING)
    tried = pending.filter(attempts__gte=1, due_at__gt=now - RECENT).order_by("-due_at")
    hosts: dict[str, list[tuple[int, str]]] = {}
    for url, attempts, error in tried.values_list("url", "attempts", "last_error")[:LOOKED_AT]:
        hosts.setdefault(parse_host(url), []).append((attempts, error))
    for host, found in hosts.items():
        if len(found) >= FEW or max(found)[0] > 1:  # a single failed try may have met a restart
            error = next((error for _, error in found if error), "a try was not ended")
            yield AttentionItem(
                code="WebhooksFail",
                about=("webhooks",),
                text=f"Notices of finished jobs cannot be delivered to {host}, {len(found):,} wait: {error}",
                todo="Inform the owner of the host. The sender tries for a day."
                " Once the host answers, send them now under Webhooks.",
            )
    since = now - datetime.timedelta(seconds=STUCK_S)
    ended = Job.objects.filter(pk=OuterRef("job"), status__in=TERMINAL, finished_at__lt=since)
    late = pending.filter(Exists(ended), due_at__lt=since).order_by()  # in a join SQLite reads all ended jobs first
    if count := late.values("pk")[:LOOKED_AT].count():
        yield AttentionItem(
            code="WebhooksWait",
            text=f"Notices of finished jobs are due and no process sends them: {count:,} wait.",
            todo="Start the sender: systemctl start inference-webhooks.",
            about=("webhooks",),
        )


def find_waiting_file_batches() -> Iterator[AttentionItem]:
    """Yield an item if no process works on file batches: each has an open bulk, in which that process is noted."""
    now = clock.get_database_time()
    since = now - MINUTE
    left = Bulk.objects.filter(is_open=True, pk__lt=make_first_id(since)).order_by()
    left = left.exclude(worked_at__range=(since, now + MINUTE))  # later ones are from before the clock was set back
    if count := left.values("pk")[:LOOKED_AT].count():
        yield AttentionItem(
            code="FileBatchesWait",
            text=f"No process works on the batches of /v1/batches: {count:,} wait.",
            todo="Start it: systemctl start inference-batches.",
            about=("file batches",),
        )
