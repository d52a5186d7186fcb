"""The child processes of a worker, one for each replica.

The pool sends them calls, loads and unloads their models, and starts those again that have ended. It belongs to the
event loop of the worker, and knows nothing of Celery.
"""

import functools
import itertools
import logging
import os
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from inference.worker.calls import LOAD_NEXT, Assignment, LoadReport, ReplyKind, describe_exit
from inference.worker.child import process as child_process
from inference.worker.child import served_calls
from inference.worker.processes.process_launcher import ProcessLauncher
from inference.worker.processes.replica_process import FIRST_MESSAGES_S, ProcessCall, ReplicaProcess
from inference.worker.replicas.registry import ReplicaRegistry

logger = logging.getLogger(__name__)

SUSPENDED_S = 5.0  # seconds without a look at the children, after which this process was stopped meanwhile


class ReplicaPool:
    """The pool of the replicas' processes.

    A call is sent to one child and runs in no other. If the child ends before it has begun the call, the pool
    forgets the call, and its sender decides anew where it runs.
    """

    def __init__(
        self,
        replicas: ReplicaRegistry,
        *,
        child_has_open_batch: Callable[[int], bool],
        load_limit_s: float,
        most_calls: int | None = None,
        most_kib: int | None = None,
    ) -> None:
        """Make a pool without processes.

        `child_has_open_batch` returns True if a batch is open in the child with this pid. A process ends after
        `load_limit_s` seconds in which it has not loaded its models. It is replaced after `most_calls` calls, or when
        it has more than `most_kib` KiB of memory, once nothing runs in it.
        """
        self.replicas = replicas
        self.processes: dict[int, ReplicaProcess] = {}  # by index of the replica; those that have not ended
        self.is_closed = False  # it takes no more calls
        self._has_open_batch = child_has_open_batch
        self._on_idle: Callable[[], object] = bool
        self._load_limit_s, self._most_calls, self._most_kib = load_limit_s, most_calls, most_kib
        self._handle_message = self._guard_callback(self._handle_reply)
        self._launcher = ProcessLauncher()
        self._loop: Any = None  # kombu's event loop
        self._numbers = itertools.count(1)
        self._is_starting = False  # one process at a time
        self._load_call: ProcessCall | None = None  # the call that has a child load or unload something
        self._awaited: int | None = None  # pid of the child that is to load something once its open batches have ended
        self._load_by = 0.0  # monotonic: when it has to have begun that call, and then to have ended it
        self._looked_at = time.monotonic()  # when the children were last looked after
        self._awaited_at = 0.0  # monotonic: since when the child is awaited

    # Processes

    def start_missing_process(self) -> None:
        """Have a process started for the first replica that has none and may have one; the others follow."""
        if self.is_closed or self._is_starting:
            return
        for index in range(self.replicas.plan.replicas):
            if index not in self.processes and self.replicas.may_start(index):
                self._start_process(index)
                return

    def _start_process(self, index: int) -> None:
        try:
            process = ReplicaProcess(index)
        except OSError as error:  # memory or file descriptors are used up
            self.replicas.note_failed_start(index, error)
            return
        self._is_starting = True
        plan, assignment = self.replicas.plan, self.replicas.make_first_assignment(index)
        level = logging.getLogger().level
        self._launcher.start_process(
            child_process.run_replica,
            (process.other_end, index, plan, assignment, dict(os.environ), level),
            self._guard_callback(lambda started: self._note_start_result(process, assignment, started)),
        )

    def _note_start_result(
        self, process: ReplicaProcess, assignment: Assignment, started: BaseProcess | Exception
    ) -> None:
        self._is_starting = False
        if isinstance(started, Exception):  # memory, processes or file descriptors are used up
            process.close()
            self.replicas.note_failed_start(process.index, started)
        else:
            process.note_process_start(started)
            self.processes[process.index] = process
            self.replicas.note_start(process.index, process.pid, assignment, process.shared)
            self._watch_process(process)
            if self.is_closed:
                process.stop_sending_calls()
                process.kill()
        self.start_missing_process()

    def register_with_loop(self, loop: Any, on_idle: Callable[[], object] = bool) -> None:
        """Have this event loop of kombu's call the pool from now on. Calls that run are not affected.

        `on_idle` is called when a replica can be given a call.
        """
        self._loop, self._on_idle = loop, on_idle
        loop.add_reader(self._launcher, self._launcher.deliver_results)
        for process in self.processes.values():
            self._watch_process(process)

    def _watch_process(self, process: ReplicaProcess) -> None:
        if self._loop and not process.is_closed:
            self._loop.add_reader(process.connection, self._guard_callback(self._read_replies), process)
            self._loop.add_reader(process.process.sentinel, self._guard_callback(self._poll_exit_code), process)
            self._watch_unsent(process)

    def _watch_unsent(self, process: ReplicaProcess) -> None:
        if process.unsent and self._loop:
            self._loop.add_writer(process.writer, self._guard_callback(self._write_unsent), process)

    def _guard_callback(self, callback: Callable[..., object]) -> Callable[..., None]:
        """Return a callback that raises nothing, as the event loop would end the worker with an exception of it."""

        @functools.wraps(callback)
        def call_guarded(*arguments: Any) -> None:
            try:
                callback(*arguments)
            except Exception:
                logger.exception("the pool of replicas failed")

        return call_guarded

    def _stop_watching(self, *descriptors: Any) -> None:
        for descriptor in descriptors if self._loop else ():
            self._loop.remove(descriptor)

    def _poll_exit_code(self, process: ReplicaProcess) -> None:
        """Learn whether a process has ended whose connection is still open, as a process that it forked has it.

        The sentinel becomes readable also if the process that forks has ended. Its children are orphans then, and
        `start_and_end_processes` looks whether they exist.
        """
        self._stop_watching(process.process.sentinel)
        self._launcher.request_exit_code(
            process.process, self._guard_callback(lambda exit_code: self._note_exit_code(process, exit_code))
        )

    def _note_exit_code(self, process: ReplicaProcess, exit_code: int | None) -> None:
        process.note_if_orphan(exit_code)
        if exit_code is not None and not process.is_awaited:
            self._read_replies(process)
            self._reap_process(process)

    def _read_replies(self, process: ReplicaProcess) -> None:
        try:
            for message in process.read_messages():
                self._handle_message(process, *message)
        except Exception:
            logger.exception("pid=%d is ended: its message cannot be read", process.pid)
            self.end_process(process.pid)
            process.note_closed()
        if process.is_closed:
            self._reap_process(process)

    def _handle_reply(self, process: ReplicaProcess, kind: ReplyKind, number: int, value: Any) -> None:
        if kind == ReplyKind.UP:
            process.note_up()
            self._note_loaded_models(value)
        elif kind == ReplyKind.LOADED:
            self._note_partial_load(process, value)
        elif kind == ReplyKind.LOADING:
            self._note_next_load(process)
            if self.is_closed:  # no call follows
                self.end_process(process.pid)
        elif kind == ReplyKind.LEAVING:
            process.note_leaving()
        elif kind == ReplyKind.ACCEPTED:
            process.calls[number].note_acceptance()
        else:
            call = process.calls.pop(number)
            process.count_finished_call(most_calls=self._most_calls, most_kib=self._most_kib)
            (call.note_result if kind == ReplyKind.DONE else call.report_error)(value)
            self._replace_if_worn(process)
            self._on_idle()

    def _note_loaded_models(self, loaded: LoadReport) -> None:
        self.replicas.note_loaded_models(loaded)
        self._on_idle()

    def _note_partial_load(self, process: ReplicaProcess, loaded: LoadReport) -> None:
        """Have a child that starts run calls of what it has loaded so far, unless other children run all of that."""
        if process.has_loaded_for_long and self.replicas.note_partial_load(loaded):
            process.note_load()
            self._on_idle()
        else:
            self._send_message(process, *LOAD_NEXT)

    def load_next_models(self, has_jobs: Callable[[int], bool]) -> None:
        """Have the children that start load their next models, once no job waits for what they have loaded.

        They load them in any case once they have taken calls for long enough. `has_jobs` returns True if jobs wait that
        the child with this pid can run. Work was given to all idle children just now.
        """
        for process in self.processes.values():
            if process.is_between_loads and process.consumed_at is None:
                process.note_consumed_queues()
            if not process.has_run_calls_for(FIRST_MESSAGES_S) or not self._is_idle(process):
                continue
            if self._has_open_batch(process.pid) or (not process.has_taken_its_calls and has_jobs(process.pid)):
                continue
            self._note_next_load(process)
            self._send_message(process, *LOAD_NEXT)

    def find_next_load_in_s(self) -> float | None:
        """Return the seconds until a child that starts may load its next model, or None if time decides about none."""
        consumed = (process.consumed_at for process in self.processes.values())
        left = [at + FIRST_MESSAGES_S - time.monotonic() for at in consumed if at is not None]
        return min((left_s for left_s in left if left_s > 0.0), default=None)

    def _note_next_load(self, process: ReplicaProcess) -> None:
        if process.is_between_loads:
            self.replicas.note_next_load(process.pid, process.note_next_load())

    def _reap_process(self, process: ReplicaProcess) -> None:
        """Learn how a process has ended, all of whose messages have been read."""
        if process.is_awaited:
            return
        process.note_closed()
        process.note_exit_wait()
        self._stop_watching(process.connection, process.writer, process.process.sentinel)
        self._launcher.call_on_exit(
            process.process, self._guard_callback(lambda exit_code: self._note_process_end(process, exit_code))
        )

    def _note_process_end(self, process: ReplicaProcess, exit_code: int | None) -> None:
        """Fail the calls that a process has begun, and forget those that it has not."""
        process.close()
        has_left = exit_code == os.EX_OK or (exit_code is None and process.leaves_by is not None)
        if not has_left and not process.is_given_up:
            logger.error("pid=%d did not end by itself: %s", process.pid, describe_exit(exit_code))
        calls = list(process.calls.values())
        process.calls.clear()
        for call in calls:
            call.note_end_of_child(exit_code)
        del self.processes[process.index]
        if not self.is_closed:
            self.replicas.note_end(process.index)
            self._on_idle()
        self.start_missing_process()

    def start_and_end_processes(self) -> None:
        """Start, restart and end children as time passes. Runs twice a second.

        Children that can run nothing are restarted. A child is ended if it does not load its models in time, or does
        not even begin what it is to load: no other child is sent an assignment before that one is over.
        """
        now = time.monotonic()
        if (suspended_s := now - self._looked_at) > SUSPENDED_S:
            self._load_by += suspended_s
            for process in self.processes.values():
                process.note_suspension(suspended_s)
        self._looked_at = now
        self._end_overdue_processes()
        if (loading := self._loading_pid) and now > self._load_by:
            self.end_process(loading)
        for process in list(self.processes.values()):
            if process.is_starting and now - process.started_at > self._load_limit_s:
                self.end_process(process.pid)
        for index in self.replicas.find_children_to_restart():
            useless = self.processes.get(index)
            if useless and not useless.calls and not self._has_open_batch(useless.pid):
                self.end_process(useless.pid)
        self.start_missing_process()

    def _end_overdue_processes(self) -> None:
        """End children that should have ended, and notice the end of children of which nothing else tells."""
        for process in list(self.processes.values()):
            if process.leaves_by is not None and time.monotonic() > process.leaves_by:
                process.kill()
            if process.is_orphan and not process.is_awaited and not process.exists:
                self._read_replies(process)
                self._reap_process(process)

    def _replace_if_worn(self, process: ReplicaProcess) -> None:
        """Have a worn process end once nothing runs in it."""
        idle = not (process.calls or process.is_given_up or self._has_open_batch(process.pid))
        if process.is_worn and idle and not self.is_closed:
            process.stop_sending_calls()
            self.replicas.note_end(process.index)
            self._send_message(process)

    def end_process(self, pid: int) -> None:
        """End a child, which must not be given another call."""
        if process := self._find_process(pid):
            process.stop_sending_calls()
            self.replicas.note_end(process.index)
            process.kill()

    # Calls

    def send_call(
        self,
        pid: int,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        *,
        done: Callable[[Any], object],
        failed: Callable[[BaseException], object],
        accepted: Callable[[int], object] | None = None,
    ) -> ProcessCall | None:
        """Send a call to this child and to no other, and return the call; None if the pool is closing.

        The child runs it at once if it is idle, or else as soon as it has done what it runs. The event loop then calls
        `accepted` with the pid, and `done` with the result or `failed` with an error, which is `ProcessLost` if the
        child ended meanwhile.
        """
        if self.is_closed:
            return None
        process = self._find_process(pid)
        if process is None or process.is_closed:
            return ProcessCall(next(self._numbers), pid, done, failed, is_over=True)
        call = ProcessCall(next(self._numbers), pid, done, failed, accepted)
        process.calls[call.number] = call
        self._send_message(process, call.number, function, tuple(arguments))
        return call

    def _send_message(self, process: ReplicaProcess, *message: Any) -> None:
        process.send_call(*message)
        self._watch_unsent(process)

    def _write_unsent(self, process: ReplicaProcess) -> None:
        process.write_unsent_bytes()
        if not process.unsent:
            self._stop_watching(process.writer)

    def is_unanswered(self, call: ProcessCall | None) -> bool:
        """Return True if a call is still to be answered."""
        return call is not None and not call.is_over

    def can_take_another_call(self, pid: int) -> bool:
        """Return True if this child has nothing to load or unload, and its last call has been written to it."""
        process = self._find_process(pid)
        return (
            process is not None
            and self._takes_calls(process)
            and not process.unsent
            and not self.replicas.find_child_to_assign([pid])
        )

    def find_idle_pids(self) -> list[int]:
        """Return the pids of the replicas that would start a call at once, the eldest process first."""
        return [each.pid for each in self.processes.values() if self._is_idle(each) and self._takes_calls(each)]

    def is_starting(self, pid: int) -> bool:
        """Return True if this child loads its first models, and begins no call meanwhile."""
        process = self._find_process(pid)
        return process is not None and process.is_starting

    def has_pid(self, pid: int) -> bool:
        return self._find_process(pid) is not None

    @property
    def busy_count(self) -> int:
        return sum(bool(process.calls) for process in list(self.processes.values()))

    def _find_process(self, pid: int) -> ReplicaProcess | None:
        return next((process for process in self.processes.values() if process.pid == pid), None)

    def _is_idle(self, process: ReplicaProcess) -> bool:
        return not (process.is_starting or process.calls or process.is_closed or process.is_given_up)

    def _takes_calls(self, process: ReplicaProcess) -> bool:
        if process.is_closed or process.is_given_up:
            return False
        if self._has_open_batch(process.pid):
            return True
        return self.replicas.can_child_take_call(process.pid) and not (process.is_worn or process.has_taken_its_calls)

    def is_to_load_next(self, pid: int) -> bool:
        """Return True if this child is to load a model once its open batches have ended.

        No job joins these batches, and the child begins no batch that stays open.
        """
        process = self._find_process(pid)
        return pid == self._awaited or (process is not None and process.has_taken_its_calls)

    # Models

    def assign_models(self) -> None:
        """Have one child after the other load or unload what it is to.

        A child does so before its next batch, and while no batch is open in it. If all children that are to load or
        unload something have open batches, it is the turn of one of them once these have ended.
        """
        before, self._awaited = self._awaited, None
        if self.is_closed or self._loading_pid:
            return
        kept = [process.pid for process in self.processes.values() if self._has_open_batch(process.pid)]
        free = [process for process in self.processes.values() if process.pid not in kept]
        if following := self.replicas.begin_next_assignment(
            [process.pid for process in free if self._is_idle(process)]
        ):
            pid, assignment = following
            self._send_assignment(pid, assignment, since=self._awaited_at if pid == before else time.monotonic())
        elif self.replicas.find_child_to_assign([process.pid for process in free]) is None:
            self._awaited = self.replicas.find_child_to_assign(kept)
            if self._awaited != before:
                self._awaited_at = time.monotonic()

    def _send_assignment(self, pid: int, assignment: Assignment, *, since: float) -> None:
        """Send a child what it is to have loaded.

        The time for which the others work without this child counts from `since`.
        """
        self._load_by = time.monotonic() + self._load_limit_s
        self._load_call = self.send_call(
            pid,
            served_calls.apply_assignment,
            (assignment,),
            done=lambda loaded: self._note_finished_load(loaded, time.monotonic() - since),
            failed=lambda error: self._end_after_failed_load(pid, time.monotonic() - since),
            accepted=self._note_load_begin,
        )

    @property
    def _loading_pid(self) -> int | None:
        """The pid of the child that was sent what it is to have loaded, until it has answered."""
        return self._load_call.pid if self._load_call and self.is_unanswered(self._load_call) else None

    def _note_load_begin(self, pid: int) -> None:
        self._load_by = time.monotonic() + self._load_limit_s

    def _note_finished_load(self, loaded: LoadReport, took_s: float) -> None:
        self._load_call = None
        self.replicas.postpone_next_try(took_s)
        self._note_loaded_models(loaded)

    def _end_after_failed_load(self, pid: int, took_s: float) -> None:
        """End a child whose assignment raised.

        It is not known what it has loaded, and it would be sent the same assignment again and again.
        """
        self._load_call = None
        self.replicas.postpone_next_try(took_s)
        self.end_process(pid)

    # The end of the worker

    def close(self) -> None:
        """Take no more calls, and have the children run their open batches to the end."""
        self.is_closed = True
        self.replicas.drain_children()

    def join(self, loop: Any, *, is_aborted: Callable[[], bool] = bool) -> None:
        """Wait until all children have run their calls and have ended. `loop`, of kombu's, turns until then.

        Children that load models are killed, as no call follows. So are all others if `is_aborted` returns True.
        """
        self.register_with_loop(loop)
        for process in self.processes.values():
            if process.is_starting or process.pid == self._loading_pid:
                process.stop_sending_calls()
                process.kill()
            else:
                self._send_message(process)
        while self.processes and not is_aborted():
            loop.run_once()
            self._end_overdue_processes()
        self.kill_children()

    def kill_children(self) -> None:
        """Kill all children that are left, and forget their calls. Calling it again does nothing."""
        self.is_closed = True
        for process in self.processes.values():
            process.kill()
            if not process.is_awaited:
                process.note_exit_wait()
                self._launcher.call_on_exit(process.process, lambda _: None)
        self._launcher.stop_thread()
