"""The recovery of what was lost, which every worker runs every few seconds; several at once do no harm.

1. A worker that is silent for too long is marked as gone (`inference.upkeep.heartbeat_monitor`).
2. A running job whose worker has stopped, is gone, or kept it for longer than its lease, is given back. It fails when
   it was lost too often, the last time alone in its worker.
3. A queued job past its deadline expires.
4. The message of a queued job is sent again if it was lost. A doubled message is harmless: only one claim wins.
5. A whole ends when its parts have ended so that its outcome is decided.
"""

import datetime
import functools
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from uuid import UUID

from django.conf import settings
from django.db import connection
from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from inference import errors, row_locks
from inference.broker import publisher
from inference.broker.address import get_queue_name
from inference.broker.messages import JobMessage
from inference.broker.other_broker_publisher import PublishRefused
from inference.catalog.lookup import get_catalog
from inference.fields.ids import make_first_id
from inference.figures import timeline_marks
from inference.models import Job, Status, Worker, WorkerState
from inference.status import workers
from inference.store import job_rows, transitions, wholes
from inference.store.job_messages import make_message
from inference.telemetry import logs
from inference.upkeep.heartbeat_monitor import Observer

logger = logging.getLogger(__name__)
_model = attrgetter("model")

RESEND_S = settings.WORKER_SILENT_S * 2 / 3  # seconds; a younger message may still be on its way
HELD_S = settings.WORKER_SILENT_S  # seconds that a message which left its queue may be held before it counts as lost
PASSED_S = settings.WORKER_SILENT_S / 3  # seconds; a job is passed when one that is this much younger was started first
CHUNK = 500
MOST = 20 * CHUNK  # jobs whose messages are sent again in a round
MILLISECOND = datetime.timedelta(milliseconds=1)


def reconcile(*, database_up_s: float = math.inf, observer: Observer | None = None) -> None:
    """Run one round: each of its steps has its turn, whatever becomes of those before it.

    Parameters:
        database_up_s: Seconds for which the database has answered the caller. After an outage no worker is judged
            before all have had the time to be heard again: the first to come back would take the jobs of all others.
        observer: What this process saw in the rounds before; the caller keeps it.

    Raises what the first step that failed has raised.
    """
    give_back_lost = functools.partial(_give_back_lost, observer or Observer(), database_up_s)
    steps = (give_back_lost, _give_back_stopped, transitions.expire_jobs, _resend_messages, wholes.finish_wholes)
    failures = [failure for step in steps if (failure := _run_step(step))]
    if failures:
        raise failures[0]


def _run_step(step: Callable[[], None]) -> Exception | None:
    """Run a step, and return what it raised; that the broker is away is only logged."""
    try:
        step()
    except errors.BrokerUnavailable as error:
        logger.warning("lost messages not sent again yet: %s", error)
    except Exception as error:
        logger.warning("a step of the round failed, the others go on: %s", logs.describe_error(error))
        connection.close_if_unusable_or_obsolete()
        return error
    return None


def _give_back_lost(observer: Observer, database_up_s: float) -> None:
    observer.observe_heartbeats()
    transitions.restart_overlong_leases()
    if database_up_s >= settings.WORKER_SILENT_S:
        _mark_silent(observer)
        is_expired = observer.make_expired_lease_condition(database_up_s=database_up_s)
        transitions.requeue_lost_jobs(Q(worker__in=_select_worker_ids(WorkerState.GONE)) | is_expired)


def _give_back_stopped() -> None:
    transitions.requeue_stopped_worker_jobs(Q(worker__in=_select_worker_ids(WorkerState.STOPPED)))


def _make_past_moment(seconds: float) -> Now:
    return Now() - datetime.timedelta(seconds=seconds)  # type: ignore[return-value]  # an expression of the ORM


def _mark_silent(observer: Observer) -> None:
    """Mark silent workers as gone, or as stopped if they were stopping, unless they were heard since."""
    idle = {"replicas_ready": 0, "replicas_busy": 0, "held": 0}
    for worker, beat in observer.find_silent_workers().items():
        last_heard = (beat - MILLISECOND, beat + MILLISECOND)  # SQLite keeps milliseconds, and compares moments as text
        silent = Worker.objects.filter(pk=worker, heartbeat_at__range=last_heard, state__in=workers.PRESENT)
        if silent.filter(state=WorkerState.STOPPING).update(state=WorkerState.STOPPED, **idle):
            continue
        name = silent.values_list("name", flat=True).first()
        if name and silent.update(state=WorkerState.GONE, **idle):
            logger.warning("worker=%s silent for %g s, its jobs are given back", name, settings.WORKER_SILENT_S)
            timeline_marks.add_mark(timeline_marks.MarkKind.GONE, name)


def _select_worker_ids(state: WorkerState) -> QuerySet[Worker, UUID]:
    return Worker.objects.filter(state=state).values_list("pk", flat=True)


def _make_age_condition(column: str, seconds: float) -> Q:
    """Return the condition that `column` is longer ago than this, or was written before the clock was set back."""
    set_back = Q(**{f"{column}__gt": _make_past_moment(-transitions.SET_BACK_S)})
    return Q(**{f"{column}__lt": _make_past_moment(seconds)}) | set_back


def _resend_messages() -> None:
    """Send the messages of lost jobs again.

    Those that were sent are marked in their rows before more are sent, so that a failure in between makes none be sent
    twice.
    """
    sent = 0
    failure: errors.BrokerUnavailable | None = None
    for messages in _chunk_messages([make_message(job, recovered=True) for job in _find_lost_jobs()]):
        try:
            publisher.publish_messages(messages)
        except errors.BrokerUnavailable as error:  # of this queue, or of all queues: then the others fail at once
            failure = error
        else:
            ids = [message.job_id for message in messages]
            sent += row_locks.update_rows(Job.objects.filter(pk__in=ids), published_at=Now())
    if sent:
        held = sum(worker.held for worker in workers.select_living_workers().only("held"))
        level = logging.INFO if held >= sent else logging.WARNING  # in a slow backlog, those that are held look lost
        logger.log(level, "%d queued jobs had no message in the broker, sent again; workers hold %d", sent, held)
    if failure:
        raise failure


def _find_lost_jobs() -> list[Job]:
    """Return the queued jobs whose messages are to be sent again, high priorities first, as a round is bounded.

    A message that was sent before is sent again only while fewer messages of its model wait than jobs. So, whatever is
    wrong with a clock, messages that are in the broker are not sent again and again.
    """
    lost = (Q(published_at=None) & _make_age_condition("created_at", 1.0)) | (
        _make_age_condition("published_at", RESEND_S) & _make_missing_condition()
    )
    jobs = Job.objects.filter(lost, status=Status.QUEUED, parts=None, model__in=_list_models_run_here())
    jobs = jobs.defer("inputs", "output").order_by("priority", "pk")
    full: set[str] = set()
    while found := list(jobs.exclude(model__in=full)[:MOST]):
        of_model = {name: list(each) for name, each in itertools.groupby(sorted(found, key=_model), _model)}
        fitting = {job.pk for name, each in of_model.items() for job in _choose_fitting_jobs(name, each)}
        if fitting:
            return [job for job in found if job.pk in fitting]
        full |= of_model.keys()
    return []


def _choose_fitting_jobs(model: str, jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs that were never sent, and as many of the others as leave no more messages than jobs that wait."""
    unsent = [job for job in jobs if job.published_at is None]
    sent = [job for job in jobs if job.published_at is not None]
    room = _count_room(model, len(jobs)) - len(unsent) if sent else 0
    return unsent + sent[: max(0, room)]


def _count_room(model: str, most: int) -> int:
    """Return how many more messages of this model may wait, at most `most`."""
    queue = get_queue_name(model)
    try:
        messages = publisher.count_messages([queue])[queue]
    except PublishRefused:  # sending to this queue fails too, with the reason
        messages = 0
    queued = Job.objects.filter(model=model, status=Status.QUEUED, parts=None).order_by().values("pk")
    return max(0, queued[: messages + most].count() - messages)


def _chunk_messages(messages: Iterable[JobMessage]) -> Iterator[list[JobMessage]]:
    """Yield the messages in chunks of one queue and priority each.

    In Redis each chunk goes before those that were sent earlier, so the chunk with the oldest messages is sent last.
    """
    line = attrgetter("priority", "queue")
    for _, group in itertools.groupby(sorted(messages, key=line), line):
        chunks = list(job_rows.split_into_chunks(group, CHUNK))
        yield from reversed(chunks) if publisher.uses_redis() else chunks


def _list_models_run_here() -> set[str]:
    """Return the models of the models file, and those gone from it whose last jobs workers still run."""
    return {*get_catalog(), *workers.count_workers_by_model(workers.select_living_workers().only("model_names"))}


def _make_missing_condition() -> Q:
    """Return the condition for queued jobs without a message.

    No message of their model and priority is in the broker or held by a worker, or younger jobs have passed them.
    """
    waiting = _list_models_run_here().intersection(
        Job.objects.filter(status=Status.QUEUED).order_by().values_list("model", flat=True).distinct()
    )
    priorities = publisher.list_waiting_priorities([get_queue_name(name) for name in waiting])
    living = list(workers.select_living_workers())
    held = any(worker.held or worker.replicas_busy for worker in living)
    missing = Q(pk__in=[])
    for name in waiting:
        of_lost = Q(model=name) & _make_age_condition("published_at", HELD_S if held else RESEND_S)
        missing |= of_lost & ~Q(priority__in=priorities[get_queue_name(name)])
        for priority, reached in _find_reached_moments(living, name).items():
            missing |= Q(
                model=name, priority=priority, pk__lt=make_first_id(reached - datetime.timedelta(seconds=PASSED_S))
            )
    return missing


def _find_reached_moments(living: Iterable[Worker], model: str) -> dict[int, datetime.datetime]:
    """Return by priority the creation time of the newest job of this model that the living workers have started.

    A worker that holds jobs may hold some that are older than those which other workers have started. So the moment is
    no later than its own.
    """
    newest: dict[int, float] = {}
    of_holders: dict[int, float] = {}
    for worker in living:
        for priority, moment in worker.reached.get(model, {}).items():
            newest[priority] = max(newest.get(priority, 0.0), moment)
            if worker.held:
                of_holders[priority] = min(of_holders.get(priority, math.inf), moment)
    reached = {key: min(moment, of_holders.get(key, math.inf)) for key, moment in newest.items()}
    return {key: datetime.datetime.fromtimestamp(at, datetime.UTC) for key, at in reached.items()}
