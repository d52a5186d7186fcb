"""The prefork pool, told apart by replica: it says when one becomes idle, and starts those that have ended again.

Imported before Django is set up: what needs models is imported where it is used.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection
from typing import Any

from billiard.pool import RUN
from celery.concurrency import asynpool, prefork

from inference.worker.calls import Loaded
from inference.worker.devices import Plan
from inference.worker.replicas import Replicas


def _nobody() -> None:
    """Until a consumer listens."""


class ReplicaWorker(asynpool.Worker):
    """What a child runs. It brings its plan along: what lies on the disk may have changed since the worker started."""

    beginning: tuple[Plan, Collection[str], ctypes.c_int] | None = None  # as `child.start` takes it
    loaded: Loaded | None = None

    def __reduce__(self) -> Any:
        return (*super().__reduce__(), {"beginning": self.beginning})

    def after_fork(self) -> None:
        super().after_fork()
        if self.beginning:
            from inference.worker import child

            self.loaded = child.start(*self.beginning)

    def on_loop_start(self, pid: int) -> None:
        self.outq.put((asynpool.WORKER_UP, (pid, self.loaded)))


class ReplicaPool(asynpool.AsynPool):
    """Calls `on_idle` when a replica can be given a call.

    The pool's semaphore counts children that still load, or that died: a call bound to one of them would wait for a
    model to load while another replica is idle. Only children in `_all_inqueues` are given calls.
    """

    Worker = ReplicaWorker
    replicas: Replicas | None = None  # none in a worker that serves no models
    _beginning: Any = None  # of the child that is made
    _trial: Any = None  # to load what no replica could load
    on_idle: Callable[[], None] = staticmethod(_nobody)

    def WorkerProcess(self, worker: Any) -> Any:
        worker.beginning = self._beginning
        return super().WorkerProcess(worker)

    def _create_worker_process(self, index: int) -> Any:
        if not self.replicas:
            return super()._create_worker_process(index)
        loading = self._ctx.RawValue("i")  # without a lock: its child may be killed at any time
        self._beginning = self.replicas.plan, self.replicas.without(index), loading
        process = super()._create_worker_process(index)
        self.replicas.started(index, process.pid, loading)
        return process

    def on_process_alive(self, pid: int, loaded: Loaded | None = None) -> None:
        super().on_process_alive(pid)
        if loaded:
            self._note(loaded)

    def _note(self, loaded: Loaded) -> None:
        if self.replicas:
            self.replicas.loaded(loaded)
        self._changed()

    def _changed(self) -> None:
        self._keep_able()
        self.on_idle()

    def _keep_able(self) -> None:
        """Only a child that can run whatever is consumed can be given a call."""
        for process in self._pool:
            fd = process.inqW_fd
            if self.replicas and self._fileno_to_inq.get(fd) is process:
                able = self.replicas.may_run(process.pid)
                (self._all_inqueues.add if able else self._all_inqueues.discard)(fd)

    def on_job_ready(self, job: Any, i: Any, obj: Any, inqW_fd: int) -> None:
        super().on_job_ready(job, i, obj, inqW_fd)
        self.on_idle()

    def _repopulate_pool(self, exitcodes: Any) -> None:
        """One that could not load what it must waits before it tries again."""
        if not self.replicas:
            super()._repopulate_pool(exitcodes)
            return
        living = {process.index for process in self._pool}
        for index in set(range(len(self.replicas.replicas))) - living:
            self.replicas.ended(index)
        self._keep_able()
        for index in set(range(self._processes)) - living:
            if self._state == RUN and self.replicas.may_start(index):
                self._create_worker_process(index)

    def try_again(self) -> None:
        """Restart the children that lack what others run; let one load what all lack."""
        if not self.replicas:
            return
        for index in self.replicas.to_restart():
            self._restart(index)
        if self.idle > 0 and self.replicas.should_try() and not self.knows(self._trial):
            self._try(self.replicas)

    def _try(self, replicas: Replicas) -> None:
        """The call goes to any idle child that may be given one: until it is accepted no other may."""
        free = self._all_inqueues - self._busy_workers
        idle = {process.pid: process.inqW_fd for process in self._pool if process.inqW_fd in free}
        if (pid := replicas.next_to_try(idle)) is None:
            return
        from inference.worker import child

        begun_at = time.monotonic()
        replicas.tried()
        self._all_inqueues.difference_update(free - {idle[pid]})
        self._trial = self.apply_async(
            child.load_missing,
            callback=lambda loaded: self._tried(loaded, time.monotonic() - begun_at),
            accept_callback=lambda pid, at: self._changed(),
            error_callback=lambda info: replicas.tried(time.monotonic() - begun_at),
            timeout=self._proc_alive_timeout,
        )

    def _tried(self, loaded: Loaded, took_s: float) -> None:
        if self.replicas:
            self.replicas.tried(took_s)
        self._note(loaded)

    def end(self, pid: int) -> None:
        """This child must not be given another call."""
        for process in self._pool:
            if process.pid == pid and self.replicas:
                self.replicas.ended(process.index)
                self._keep_able()
                os.kill(pid, signal.SIGKILL)

    def _restart(self, index: int) -> None:
        for process in self._pool:
            calls_of = (job for job in self._cache.values() if process in (job._write_to, job._scheduled_for))
            if process.index == index and not any(calls_of):
                process.terminate_controlled()

    def knows(self, call: Any) -> bool:
        """Whether it is still to be answered: after a reconnect Celery forgets those that no child has begun."""
        return call in self._cache.values()

    def flush(self) -> None:
        """Celery forgets every call that no child has accepted. A child that has read one still runs it, and would
        wait for 30 s at its end for somebody to take the result: those calls are kept."""
        begun = [job for job in self._cache.values() if job._write_to is not None and not job._accepted]
        for job in begun:
            job._accepted = True
        super().flush()
        for job in begun:
            job._accepted = job._worker_pid is not None
            if not job._accepted and not job._write_to._is_alive():
                job.discard()

    @property
    def ready(self) -> int:
        """Replicas that can be given a call, now or after the one they run."""
        return len(self._all_inqueues)

    @property
    def busy(self) -> int:
        return len(self._busy_workers)

    @property
    def idle(self) -> int:
        """Replicas that would start a call at once."""
        return len(self._all_inqueues - self._busy_workers) - len(self.outbound_buffer)


class TaskPool(prefork.TaskPool):
    Pool = ReplicaPool

    @property
    def replicas(self) -> ReplicaPool | None:
        """None once the worker has stopped it."""
        pool: ReplicaPool | None = self._pool
        return pool
