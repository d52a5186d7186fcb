"""The search for waiting jobs whose messages are in the broker behind those of others.

A broker delivers messages in the order of their arrival, and a worker sees no more of them than it may hold. Where one
owner has sent thousands, it would see no message of another owner. But a message is only a hint that a row waits: a
worker that has read the row needs none. So a full worker takes such jobs from their rows. The message that arrives
later finds that its job has run.
"""

from __future__ import annotations

import itertools
import threading
import time
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from inference import clock
from inference.batching.queue import Item
from inference.models import TERMINAL, Job
from inference.status import owner_queues, workers
from inference.status.owner_queues import OwnerQueue
from inference.store.job_messages import make_message
from inference.worker.chore_runner import run_chore
from inference.worker.scheduling.backlog import Backlog

LOOK_S, LONGEST_PAUSE_S = 0.05, 10.0  # pauses between two looks; the second while the database is away
PORTION_S = 4 * LOOK_S  # engine time of the jobs of one owner that a look takes: it may get half of the engine
SHARE = 0.05  # share of the time that looks may take
MOST_JOBS = 128  # most jobs that a look finds
PEERS_S = 1.0  # between two looks for the peers
MOST_GONE = 0.02  # share of gone jobs, above which owners with many jobs have to wait for their messages
MOST_LOOKED_AT = 500  # most held jobs whose rows a look reads


class LookQuestion(NamedTuple):
    """The state of the event loop as a look begins."""

    rows: Mapping[str, int]  # rows of the calls in hand, by served model: so many are taken at a time
    jobs: Mapping[str, int]  # jobs that an engine runs in `PORTION_S`, by model: so many, if they are more
    batch: Mapping[str, int]  # rows of a batch, by model
    is_for_few: bool  # only jobs of lines that fit into one batch are taken
    lines: Collection[tuple[str, int, str | None]]  # models, priorities and owners of the waiting jobs that are held
    waiting: Sequence[str]  # ids of the waiting jobs that are held


class UnfetchedJobFinder(threading.Thread):
    """The thread that looks for jobs of owners and priorities of which a full worker holds none.

    It also finds the held jobs that have ended, because they were cancelled or run from their row: they are in the way.
    """

    def __init__(self, worker: UUID) -> None:
        super().__init__(name="unfetched", daemon=True)
        self._worker = str(worker)
        self._question: LookQuestion | None = None
        self._found: deque[tuple[str, Item]] = deque()
        self._ended: deque[str] = deque()
        self._after: Any = None  # the owner after which the next look begins
        self._peers: Mapping[str, Sequence[str]] = {}  # by model: ids of the workers that serve it, with this one
        self._peers_until = 0.0  # monotonic
        self._is_requested = threading.Event()
        self._stopping = threading.Event()

    def run(self) -> None:
        while self._is_requested.wait() and not self._stopping.is_set():
            begun_at = time.monotonic()
            looked = run_chore(self.look_for_jobs, self._worker)
            took_s = time.monotonic() - begun_at
            self._stopping.wait(max(LOOK_S, took_s / SHARE) if looked else LONGEST_PAUSE_S)

    def stop(self) -> None:
        self._stopping.set()
        self._is_requested.set()

    def hand_over_found_jobs(self, backlog: Backlog) -> None:
        """Add the found jobs to the backlog, and drop those that have ended. Runs in the event loop."""
        while self._ended:
            backlog.drop_ended_job(self._ended.popleft())
        while self._found:
            model, item = self._found.popleft()
            if model in backlog.replicas.unpaused_models and item.id not in backlog.held:
                backlog.hold_job(item, model)

    def request_look(self, backlog: Backlog, *, calls: int) -> None:
        """Ask for another look, since more jobs wait than the worker may hold.

        `calls` is the number of calls in hand. Runs in the event loop.
        """
        if not self._is_requested.is_set():
            self._question = _question(backlog, calls)
            self._is_requested.set()

    def look_for_jobs(self) -> None:
        """Answer the question of the event loop. Runs in this thread."""
        question, self._question = self._question, None
        self._is_requested.clear()
        if question is None or not question.rows:
            return
        self._look_for_peers()
        with owner_queues.disable_sorting():
            lines, self._after = owner_queues.find_owner_queues_with_jobs(question.rows, after=self._after)
            missed = [line for line in lines if self._is_mine(line) and _make_line_key(line) not in question.lines][
                :MOST_JOBS
            ]
            jobs = owner_queues.read_first_jobs(missed, most=MOST_JOBS // max(1, len(missed)))
        several = Counter(line.model for line in missed)
        for (model, *_), line in itertools.groupby(jobs, key=lambda job: (job.model, job.priority, job.owner_id)):
            rows, most = (figures[model] // several[model] for figures in (question.rows, question.jobs))
            found = list(line)
            if not question.is_for_few or sum(job.size for job in found) <= question.batch[model]:
                self._found.extend((model, make_item(job)) for job in _take_portion(found, rows, most))
        ended = Job.objects.filter(pk__in=question.waiting, status__in=TERMINAL).order_by()
        self._ended.extend(map(str, ended.values_list("pk", flat=True)))

    def _look_for_peers(self) -> None:
        """Find the workers among which the lines are divided, so that not all take the same jobs.

        It looks once in `PEERS_S`. A worker that has missed some heartbeats gets no lines.
        """
        if time.monotonic() < self._peers_until:
            return
        self._peers_until = time.monotonic() + PEERS_S
        able = (
            workers.select_living_workers()
            .filter(~workers.make_late_heartbeat_condition(), state__in=workers.SERVING_OR_STARTING)
            .order_by("pk")
        )
        peers: dict[str, list[str]] = defaultdict(list)
        for worker, names in able.values_list("pk", "model_names"):
            for name in names:
                peers[name].append(str(worker))
        self._peers = peers

    def _is_mine(self, line: OwnerQueue) -> bool:
        """Return True if this worker takes the jobs of a line, of which one of its peers does."""
        peers = self._peers.get(line.model, ())
        if self._worker not in peers:
            return True
        number = zlib.crc32(f"{line.owner} {line.priority}".encode())
        return peers[number % len(peers)] == self._worker


def _question(backlog: Backlog, calls: int) -> LookQuestion:
    serving = {name: queue for name, queue in backlog.queues.items() if name in backlog.replicas.unpaused_models}
    return LookQuestion(
        rows={name: calls * queue.limits.max_batch_size for name, queue in serving.items()},
        jobs={name: int(PORTION_S * queue.costs.items_per_s()) for name, queue in serving.items()},
        batch={name: queue.limits.max_batch_size for name, queue in serving.items()},
        is_for_few=backlog.gone_share > MOST_GONE,
        lines={(name, *line) for name, queue in serving.items() for line in queue.owners},
        waiting=list(itertools.islice(itertools.chain.from_iterable(serving.values()), MOST_LOOKED_AT)),
    )


def _make_line_key(line: OwnerQueue) -> tuple[str, int, str | None]:
    return line.model, line.priority, owner_queues.format_owner_id(line.owner)


def _take_portion(jobs: Iterable[Job], rows: int, most: int) -> Iterator[Job]:
    """Yield the first jobs of a line: as many as have `rows` rows, or `most` jobs if that is more; at least one."""
    for taken, job in enumerate(jobs):
        if taken and rows <= 0 and taken >= most:
            return
        yield job
        rows -= job.size


def make_item(job: Job) -> Item:
    """Return the queue item of a job, as its message would give it."""
    message = make_message(job)
    return Item(
        message.job_id,
        message.group,
        message.size,
        message.length,
        message.priority,
        min(message.created_at, clock.estimate_now_s()),
        message.expires_at,
        message.alone,
        message.owner,
    )
