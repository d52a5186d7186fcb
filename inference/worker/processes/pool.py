"""The prefork pool of a worker, with one child process for each replica.

It calls back when a replica becomes idle, and restarts replicas that have ended.

Imported before Django is set up: what needs models is imported where it is used.
"""

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from billiard.common import human_status
from billiard.pool import EX_RECYCLE, RUN
from celery.concurrency import asynpool, prefork
from celery.utils.log import current_process_index

from inference.worker.calls import Assignment, LoadReport, SharedState
from inference.worker.processes.forkserver import ForkedProcess
from inference.worker.replicas.devices import Plan
from inference.worker.replicas.registry import ReplicaRegistry

logger = logging.getLogger(__name__)


def _nobody() -> None:
    """Do nothing, until a consumer sets its own function."""


def _keeps_nothing(pid: int) -> bool:
    """Return False, until a consumer sets its own function."""
    return False


class ReplicaWorker(asynpool.Worker):
    """The object that a child process runs. It is sent with what the child is to load.

    The models file on the disk may have changed already.
    """

    beginning: tuple[Plan, Assignment, SharedState] | None = None  # the arguments of `entry.start`
    loaded: LoadReport | None = None

    def __reduce__(self) -> Any:
        # Answers name their child by the number that the pipe to it has here. The child has another number for it.
        return (*super().__reduce__(), {"beginning": self.beginning, "inqW_fd": self.inqW_fd})

    def after_fork(self) -> None:
        super().after_fork()
        if self.beginning:
            from inference.worker.child import entry

            self.loaded = entry.start(*self.beginning)

    def workloop(self, *arguments: Any, **options: Any) -> Any:
        if not self.beginning:
            return super().workloop(*arguments, **options)
        from inference.worker.child import entry
        from inference.worker.child.work_ahead import WorkAhead

        if self.beginning[0].works_ahead(current_process_index(base=0) or 0):
            return WorkAhead(self.wait_for_job, self.outq.put, self.inqW_fd).run()
        try:
            return super().workloop(*arguments, **options)
        except SystemExit:  # no call will follow
            entry.run_to_the_end()
            raise

    def on_loop_start(self, pid: int) -> None:
        self.outq.put((asynpool.WORKER_UP, (pid, self.loaded)))


class ReplicaPool(asynpool.AsynPool):
    """The pool of the replicas' processes, which calls `on_idle` when a replica can be given a call.

    The pool's semaphore counts children that still load, or that died. A call bound to one of them would wait for a
    model to load while another replica is idle. Only children in `_all_inqueues` are given calls.
    """

    Worker = ReplicaWorker
    replicas: ReplicaRegistry | None = None  # None in a worker that serves no models
    _beginning: Any = None  # `ReplicaWorker.beginning` of the child that is being made
    _load_call: Any = None  # the call that has a child load or unload something
    _begins_by = 0.0  # monotonic: when that call has to have begun
    awaited: int | None = None  # pid of the child that is to load or unload something once its open batches have ended
    _awaited_at = 0.0  # monotonic: since when that child is awaited
    on_idle: Callable[[], None] = staticmethod(_nobody)
    keeps: Callable[[int], bool] = staticmethod(_keeps_nothing)  # True if a batch is open in this child

    def Process(self, **options: Any) -> Any:
        return (ForkedProcess if self.replicas else super().Process)(**options)

    def did_start_ok(self) -> bool:
        """Return True if the pool has replicas, or if no child has ended already.

        A model may have ended its child already. That child is started again, and the children that serve other models
        are there.
        """
        return bool(self.replicas or super().did_start_ok())

    def WorkerProcess(self, worker: Any) -> Any:
        worker.beginning = self._beginning
        return super().WorkerProcess(worker)

    def _create_worker_process(self, index: int) -> Any:
        if not self.replicas:
            return super()._create_worker_process(index)
        try:
            shared = self._ctx.RawValue(SharedState)
            assignment = self.replicas.first_assignment(index)
            self._beginning = self.replicas.plan, assignment, shared
            process = super()._create_worker_process(index)
        except (OSError, EOFError) as error:  # memory, processes or file descriptors are used up
            self._forget_start(index)
            self.replicas.not_started(index, error)
            return None
        self.replicas.started(index, process.pid, assignment, shared)
        return process

    def _forget_start(self, index: int) -> None:
        """Remove what was made for a child whose start failed.

        If its process was made after all, it is killed, and ends as any other that dies.
        """
        for process in [process for process in self._pool if process.index == index]:
            if process.pid is None:
                self._pool.remove(process)
                self._queues[self._find_worker_queues(process)] = None
            else:
                os.kill(process.pid, signal.SIGKILL)

    def on_process_alive(self, pid: int, loaded: LoadReport | None = None) -> None:
        super().on_process_alive(pid)
        if loaded:
            self._note(loaded)

    def _note(self, loaded: LoadReport) -> None:
        if self.replicas:
            self.replicas.loaded(loaded)
        self._changed()

    def _changed(self) -> None:
        self._keep_able()
        self.on_idle()

    def _keep_able(self) -> None:
        """Let only children that can be given a call count as idle when they do nothing."""
        for process in self._pool:
            fd = process.inqW_fd
            if self.replicas and self._fileno_to_inq.get(fd) is process:
                able = self.replicas.may_run(process.pid)
                # The pool compares the number of busy children with the number of all.
                (self._all_inqueues.add if able or fd in self._busy_workers else self._all_inqueues.discard)(fd)

    def _create_write_handlers(self, hub: Any, **options: Any) -> None:
        super()._create_write_handlers(hub, **options)
        self._write_to = hub.consolidate_callback  # of the pipes given to it, idle ones get the next calls

    def send(self, pid: int, function: Callable[..., Any], arguments: Any, **options: Any) -> Any:
        """Send a call to this child and to no other, and return the call; None if the pool is closing.

        The child runs it at once if it is idle, or else as soon as it has done what it runs. If the child ends before
        it has begun the call, the pool no longer `knows` the call.
        """
        fd = next(process.inqW_fd for process in self._pool if process.pid == pid)
        call = self.apply_async(function, arguments, **options)
        if call is not None:
            self.outbound_buffer.remove(call)
            self.outbound_buffer.appendleft(call)
            self._all_inqueues.add(fd)
            self._busy_workers.discard(fd)
            self._write_to([fd])
            if call in self.outbound_buffer:  # nothing can be written to this child now, and no other may get the call
                self.outbound_buffer.remove(call)
                call.discard()
            self._keep_able()
        return call

    def may_have_more(self, pid: int) -> bool:
        """Return True if this child has nothing to load or unload, and its last call has been written to it."""
        fds = [process.inqW_fd for process in self._pool if process.pid == pid]
        return fds != [] and fds[0] not in self._active_writes and not (self.replicas and self.replicas.wanted([pid]))

    def on_job_ready(self, job: Any, i: Any, obj: Any, inqW_fd: int) -> None:
        super().on_job_ready(job, i, obj, inqW_fd)
        if any(call._write_to and call._write_to.inqW_fd == inqW_fd for key, call in self._cache.items() if key != job):
            self._busy_workers.add(inqW_fd)  # the child was given more than one call
        self._changed()

    def on_job_process_down(self, job: Any, pid_gone: int) -> None:
        """Drop a call that had not begun as its child ended: its sender decides anew where it runs.

        Celery would write it to any child. It may not belong among the batches of that child, and that child may be
        busy for ever.
        """
        if not self.replicas:
            super().on_job_process_down(job, pid_gone)
        elif job._worker_pid is None:
            self._active_writers.discard(job._writer())  # the writer would write the rest into the next child's pipe
            job.discard()

    def _process_cleanup_queues(self, process: Any) -> None:
        """Close the pipes of a process that ended, and make new ones for the next process.

        A message that the process has not read, or has read half of, is lost.
        """
        if not process.dead:
            self.on_process_down(process)
            process.dead = True
            self.destroy_queues(self._find_worker_queues(process), process)
            self._queues[self.create_process_queues()] = None

    def _repopulate_pool(self, exitcodes: Any) -> None:
        """Start a process for each replica that has none.

        A replica that could not load its models waits before it tries again.
        """
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

    def look_after(self) -> None:
        """Restart the children that can run nothing, and end a child that does not even begin what it is to load.

        No other child is sent an assignment before the assignment of that one is over.
        """
        if self.knows(self._load_call) and not self._load_call.accepted() and time.monotonic() > self._begins_by:
            self.end(self._load_call._write_to.pid)
        for index in self.replicas.to_restart() if self.replicas else ():
            self._restart(index)

    def assign_models(self) -> None:
        """Have one child after the other load or unload what it is to.

        A child does so before its next batch, and while no batch is open in it. If all children that are to load or
        unload something have open batches, one of them is `awaited`: no job joins its batches, and it begins no batch
        that stays open.
        """
        before, self.awaited = self.awaited, None
        if not self.replicas or self._state != RUN or self.knows(self._load_call):
            return
        kept = [process.pid for process in self._pool if self.keeps(process.pid)]
        free = [process for process in self._pool if process.pid not in kept]
        if following := self.replicas.next_assignment([process.pid for process in free if self._is_idle(process)]):
            pid, assignment = following
            self._send_assignment(pid, assignment, since=self._awaited_at if pid == before else time.monotonic())
        elif self.replicas.wanted([process.pid for process in free]) is None:
            self.awaited = self.replicas.wanted(kept)
            if self.awaited != before:
                self._awaited_at = time.monotonic()

    def _send_assignment(self, pid: int, assignment: Assignment, *, since: float) -> None:
        """Send a child what it is to have loaded.

        The time for which the others work without this child counts from `since`.
        """
        from inference.worker.child import entry

        self._begins_by = time.monotonic() + self._proc_alive_timeout
        self._load_call = self.send(
            pid, entry.apply_assignment, (assignment,),
            callback=lambda loaded: self._done(loaded, time.monotonic() - since),
            error_callback=lambda info: self._not_done(pid, time.monotonic() - since),
            timeout=self._proc_alive_timeout,
        )  # fmt: skip

    def _is_idle(self, process: Any) -> bool:
        return self._fileno_to_inq.get(process.inqW_fd) is process and process.inqW_fd not in self._busy_workers

    def _done(self, loaded: LoadReport | None, took_s: float) -> None:
        self._load_call = None
        if self.replicas:
            self.replicas.pause_tries(took_s)
        if loaded:
            self._note(loaded)

    def _not_done(self, pid: int, took_s: float) -> None:
        """End a child whose assignment raised.

        It is not known what it has loaded, and it would be sent the same assignment again and again.
        """
        self._done(None, took_s)
        self.end(pid)

    def end(self, pid: int) -> None:
        """End a child, which must not be given another call."""
        for process in self._pool:
            if process.pid == pid and self.replicas:
                self.replicas.ended(process.index)
                self._keep_able()
                with contextlib.suppress(ProcessLookupError):  # it has ended already
                    os.kill(pid, signal.SIGKILL)

    def _restart(self, index: int) -> None:
        for process in self._pool:
            calls_of = (job for job in self._cache.values() if process in (job._write_to, job._scheduled_for))
            if process.index == index and not any(calls_of) and not self.keeps(process.pid):
                process.terminate_controlled()

    def close(self) -> None:
        """Take no more calls, and have the children run their open batches to the end."""
        super().close()
        if self.replicas:
            self.replicas.close()

    def join(self) -> None:
        """Wait until all children have ended, as the worker leaves.

        The jobs of a child that did not end by itself go back to their queue.
        """
        super().join()
        for process in self._pool:
            if process.exitcode not in (os.EX_OK, EX_RECYCLE, None):
                logger.error("pid=%s did not end by itself: %s", process.pid, human_status(process.exitcode))

    def knows(self, call: Any) -> bool:
        """Return True if a call is still to be answered.

        As a connection ends, Celery forgets the calls that no child has begun.
        """
        return call in self._cache.values()

    def flush(self) -> None:
        """Forget the calls that no child has accepted, but keep those that a child has read.

        Celery would forget all of them. A child that has read a call still runs it, and would wait for 30 s at its end
        for its result to be taken.
        """
        begun = [job for job in self._cache.values() if job._write_to is not None and not job._accepted]
        for job in begun:
            job._accepted = True
        super().flush()
        for job in begun:
            job._accepted = job._worker_pid is not None

    @property
    def ready(self) -> int:
        """The number of replicas that can be given a batch, now or after the call that they run."""
        return self.replicas.able if self.replicas else 0

    @property
    def busy(self) -> int:
        return len(self._busy_workers)

    def idle(self) -> list[int]:
        """Return the pids of the replicas that would start a call at once."""
        return [process.pid for process in self._pool if self._is_idle(process) and self._takes_calls(process)]

    def _takes_calls(self, process: Any) -> bool:
        return process.inqW_fd in self._all_inqueues or self.keeps(process.pid)

    def has(self, pid: int) -> bool:
        return any(process.pid == pid for process in self._pool)


class TaskPool(prefork.TaskPool):
    Pool = ReplicaPool

    @property
    def replicas(self) -> ReplicaPool | None:
        """The pool of the replicas, or None once the worker has stopped it."""
        pool: ReplicaPool | None = self._pool
        return pool
