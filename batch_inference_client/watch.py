"""The waits of hundreds of futures, on a few connections: each waits for any of up to 500 jobs.

The first connection waits long and the last one briefly. So a job that is submitted while all of them wait is soon
among the jobs that a connection waits for.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from batch_inference_client.errors import ClientError, JobError
from batch_inference_client.futures import JobFuture
from batch_inference_client.service import MOST_IDS, Document, Service, retry_while_passing

logger = logging.getLogger("batch_inference_client")

T = TypeVar("T")

WAITS_S = (20.0, 10.0, 2.0, 0.25)  # of each connection; some proxies cut a request off after 30 s
IDLE_S = 10.0  # after which the thread of a connection without jobs ends

Watched = dict[str, list[JobFuture]]  # by the id of the job


class Watch:
    """The threads that wait for the jobs of futures.

    They start when there are futures that no thread waits for, and end some time after the last one.
    """

    def __init__(self, service: Service, *, patience_s: float) -> None:
        self._service, self._patience_s = service, patience_s
        self._changed = threading.Condition()
        self._backlog: Watched = {}  # futures that no connection waits for now
        self._in_flight: Watched = {}  # futures that a connection waits for now
        self._places: set[int] = set()  # places in `WAITS_S` of the connections that there are
        self._idle: set[int] = set()  # places in `WAITS_S` of the connections without jobs
        self._is_closed = False

    def add(self, future: JobFuture) -> None:
        with self._changed:
            if not self._is_closed:
                self._backlog.setdefault(future.id, []).append(future)
                self._ensure_thread()
                self._changed.notify_all()
                return
        future.fail(_make_closed_error(future.id))

    def close(self) -> None:
        """End all futures with an error. Their jobs go on."""
        with self._changed:
            self._is_closed = True
            left = [*self._backlog.values(), *self._in_flight.values()]
            self._changed.notify_all()
        for future in itertools.chain.from_iterable(left):
            future.fail(_make_closed_error(future.id))

    def _ensure_thread(self) -> None:
        if not self._idle and len(self._places) < len(WAITS_S):
            place = min(set(range(len(WAITS_S))) - self._places)
            threading.Thread(target=self._run, args=(place,), name=f"inference-client-{place}", daemon=True).start()
            self._places.add(place)  # after the start, which may raise if there can be no more threads

    def _run(self, place: int) -> None:
        while taken := self._take_ids(place):
            try:
                answer = retry_while_passing(lambda: self._wait_for(taken, place), limit_s=self._patience_s)
                self._settle(taken, answer)
            except Exception as error:
                self._fail(taken, error)
            else:
                time.sleep(answer.get("pause_s", 0.0))

    def _wait_for(self, taken: Sequence[str], place: int) -> Document:
        return self._service.wait(taken, wait_s=WAITS_S[place])

    def _take_ids(self, place: int) -> list[str]:
        """Return the ids of the jobs that this connection waits for next. The list is empty when its thread is to end.

        Of idle connections, the one with the longest wait is the first to take jobs.
        """
        with self._changed:
            self._idle.add(place)
            self._changed.wait_for(lambda: self._is_closed or (self._backlog and min(self._idle) == place), IDLE_S)
            self._idle.discard(place)
            if self._is_closed or not self._backlog:
                self._places.discard(place)
                return []
            taken = list(itertools.islice(self._backlog, MOST_IDS))
            self._move(taken, self._backlog, self._in_flight)
            return taken

    def _settle(self, taken: Sequence[str], answer: Document) -> None:
        """Set the outcomes of the futures whose jobs are finished or missing.

        A connection waits for the other futures again before that, as callbacks of futures may take long.
        """
        jobs = {job["id"]: job for job in answer["items"]}
        missing = {each["id"]: each["code"] for each in answer["missing"]}
        ended = self._take_futures([*jobs, *missing])
        with self._changed:
            self._move(taken, self._in_flight, self._backlog)
            if self._backlog:
                self._ensure_thread()
        for future in ended:
            if job := jobs.get(future.id):
                _call(future.settle, job)
            else:
                _call(future.fail, JobError.missing(future.id, missing[future.id]))

    def _fail(self, taken: Sequence[str], error: Exception) -> None:
        for future in self._take_futures(taken):
            _call(future.fail, error)

    def _take_futures(self, ids: Iterable[str]) -> list[JobFuture]:
        with self._changed:
            return [future for job_id in ids for future in self._in_flight.pop(job_id, ())]

    def _move(self, ids: Iterable[str], source: Watched, target: Watched) -> None:
        for job_id in ids:
            if job_id in source:
                target.setdefault(job_id, []).extend(source.pop(job_id))
        self._changed.notify_all()


def _call(method: Callable[[T], None], value: T) -> None:
    """Call a method of a future, and log whatever its callbacks raise.

    A callback may end its own thread, as `sys.exit` does, but must not end the wait of the other futures.
    """
    try:
        method(value)
    except BaseException:
        logger.exception("A callback ended what it must not.")


def _make_closed_error(job_id: str) -> ClientError:
    return ClientError(f"The client was closed. The job {job_id} goes on: Client(…).job({job_id!r}).", code="closed")
