"""The pool's book-keeping; with whole workers it is in tests/e2e and tests/faults."""

import contextlib
import errno
import math
import os
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import TestCase
from unittest.mock import Mock, patch
from uuid import uuid4

from billiard import get_context
from billiard.exceptions import WorkerLostError
from billiard.pool import RUN
from celery.concurrency.asynpool import AsynPool, Worker
from kombu.asynchronous import Hub

from inference.catalog.specs import ModelSpec
from inference.worker.calls import READY, Assignment, ChildCommand, LoadReport, SharedState
from inference.worker.child import entry
from inference.worker.child.work_ahead import WorkAhead
from inference.worker.processes.pool import ReplicaPool, ReplicaWorker
from inference.worker.replicas.devices import Plan
from inference.worker.replicas.registry import ReplicaRegistry
from tests.conditions import PATIENCE_S, eventually
from tests.inference.worker.test_dispatch import stop_clock

MORE_THAN_A_PIPE = 300_000  # bytes that it holds


def loads_all(plan: Plan, assignment: Assignment, shared: SharedState) -> LoadReport:
    return LoadReport(pid=os.getpid(), models={spec.digest: READY for spec in assignment})


def fail(assignment: Assignment) -> LoadReport:
    raise RuntimeError("no library")


class Forked(ReplicaPool):
    """Of this process, which is quicker."""

    def Process(self, **options: Any) -> Any:
        return AsynPool.Process(self, **options)


class PoolCase(TestCase):
    """Real processes."""

    count = 1

    def setUp(self) -> None:
        plan = Plan(worker=uuid4(), devices=("cpu",), replicas=self.count, threads=1)
        self.replicas = ReplicaRegistry(plan, {"a": ModelSpec(name="a", engine="x:Y")})
        self.enterContext(patch.object(Forked, "replicas", self.replicas))
        self.enterContext(patch.object(entry, "start", loads_all))
        self.pool: Any = Forked(self.count, threads=False, proc_alive_timeout=PATIENCE_S, context=get_context("fork"))
        self.addCleanup(self.pool.terminate)
        self.addCleanup(self.kill_all)  # who is asked to leave takes a second
        self.hub = Hub()
        self.addCleanup(self.hub.close)
        self.pool.register_with_event_loop(self.hub)
        self.hub.call_repeatedly(0.02, self.pool.maintain_pool)
        self.until(lambda: len(self.pool.idle()) == self.count, "all are up")
        self.answers: list[Any] = []

    def kill_all(self) -> None:
        for process in self.pool._pool:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    def until(self, condition: Callable[[], Any], what: str) -> None:
        def turned() -> Any:
            self.hub.run_once()
            return condition()

        eventually(turned, what)


class EndedChildTests(PoolCase):
    """One that is stopped has not begun what it is sent before it is killed."""

    @property
    def pid(self) -> int:
        return int(self.pool._pool[0].pid)

    def send(self, value: Any) -> Any:
        return self.pool.send(self.pid, str, (value,), callback=self.answers.append, error_callback=self.answers.append)

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def sent_in_vain(self, text: str) -> tuple[Any, int]:
        """The call, and its child, which is killed."""
        self.answers.clear()
        self.stop()
        call, killed = self.send(text), self.pid
        self.kill()
        return call, killed

    def assert_the_next_one_works(self, killed: int) -> None:
        self.until(lambda: self.pool.idle() not in ([], [killed]), "another one is up")
        self.send("of the next")
        self.until(lambda: self.answers, "it answers")
        self.assertEqual(self.answers, ["of the next"])
        self.assertEqual(set(self.pool._fileno_to_outq.values()), set(self.pool._pool))
        self.assertEqual((self.pool._cache, set(self.pool._active_writers)), ({}, set()))

    def test_what_it_had_not_begun_is_forgotten_and_runs_in_no_other(self) -> None:
        for text in ("short", "x" * MORE_THAN_A_PIPE):
            with self.subTest(len(text)):
                call, killed = self.sent_in_vain(text)
                self.assert_the_next_one_works(killed)
                self.assertFalse(self.pool.knows(call))

    def test_so_it_is_where_the_connection_ends_at_the_same_time(self) -> None:
        for text in ("short", "x" * MORE_THAN_A_PIPE):
            with self.subTest(len(text)):
                call, killed = self.sent_in_vain(text)
                self.pool.flush()
                self.assert_the_next_one_works(killed)
                self.assertFalse(self.pool.knows(call))

    def test_so_it_is_where_it_ends_after_the_pool_has_looked(self) -> None:
        for text in ("short", "x" * MORE_THAN_A_PIPE):
            with self.subTest(len(text)):
                call, killed = self.sent_in_vain(text)
                with patch.object(Forked, "maintain_pool"):
                    eventually(lambda: not self.pool._pool[0]._is_alive())
                    self.pool.flush()
                self.assert_the_next_one_works(killed)
                self.assertFalse(self.pool.knows(call))

    def test_one_that_does_not_begin_what_it_is_to_load_is_ended(self) -> None:
        self.stop()
        stopped = self.pid
        self.replicas.follow({"b": ModelSpec(name="b", engine="x:Y")})
        self.pool.assign_models()
        self.pool.look_after()
        self.assertTrue(self.pool._pool[0]._is_alive())
        self.pool._begins_by = 0.0
        self.pool.look_after()
        self.assert_the_next_one_works(stopped)
        self.assertIn("b", self.replicas.served)

    def test_one_in_which_an_assignment_raised_is_ended_and_not_sent_it_again(self) -> None:
        raised = self.pid
        self.replicas.follow({"b": ModelSpec(name="b", engine="x:Y")})
        with patch.object(entry, "apply_assignment", fail):
            self.pool.assign_models()
        self.until(lambda: self.pid != raised, "it is ended")
        self.assert_the_next_one_works(raised)
        self.assertIn("b", self.replicas.served)

    def test_one_that_can_run_nothing_is_restarted_once_it_has_answered(self) -> None:
        useless = self.pid
        self.stop()
        self.send("text")
        self.replicas.loaded(LoadReport(pid=useless, models=dict.fromkeys(self.replicas.goal, "no weights")))
        self.replicas.replicas[0].retry_at = 0.0
        with patch.object(self.pool._pool[0], "terminate_controlled") as restart:
            self.pool.look_after()
            restart.assert_not_called()
            os.kill(useless, signal.SIGCONT)
            self.until(lambda: self.answers, "it answers")
            self.pool.look_after()
        restart.assert_called_once_with()

    def test_what_it_had_begun_is_lost(self) -> None:
        killed = self.pid
        self.pool.send(killed, time.sleep, (3600,), error_callback=self.answers.append)  # does not end
        self.until(lambda: self.pool._cache and next(iter(self.pool._cache.values())).accepted(), "it has begun")
        self.kill()
        self.until(lambda: self.answers, "it is told")
        self.assertIsInstance(self.answers.pop().exception.exc, WorkerLostError)
        self.assert_the_next_one_works(killed)

    def test_what_a_living_one_has_is_kept_as_the_connection_ends(self) -> None:
        self.stop()
        self.send("text")
        self.pool.flush()
        os.kill(self.pid, signal.SIGCONT)
        self.until(lambda: self.answers, "it answers")

    def test_what_is_open_in_it_runs_to_its_end_as_the_worker_leaves(self) -> None:
        with tempfile.NamedTemporaryFile("r") as file:
            with patch.object(entry, "run_to_the_end", lambda: Path(file.name).write_text("it ran")):
                killed = self.pid
                self.kill()
                self.until(lambda: self.pool.idle() not in ([], [killed]), "one that knows of it is up")
                with self.assertNoLogs("inference.worker.processes.pool"):
                    self.pool.close()
                    self.pool.join()
            self.assertEqual(file.read(), "it ran")
        self.assertEqual(self.replicas.replicas[0].shared.command, ChildCommand.DRAIN)

    def test_one_that_does_not_end_by_itself_then_is_logged(self) -> None:
        self.stop()
        self.pool.close()
        self.kill()
        with self.assertLogs("inference.worker.processes.pool", "ERROR") as logs:
            self.pool.join()
        self.assertIn(f"pid={self.pool._pool[0].pid} did not end by itself: signal 9", logs.output[0])

    def test_what_cannot_be_written_to_it_goes_to_no_other(self) -> None:
        self.pool._active_writes.add(self.pool._pool[0].inqW_fd)
        self.assertFalse(self.pool.knows(self.send("text")))
        self.assertEqual(list(self.pool.outbound_buffer), [])


class WorkloopTests(TestCase):
    def test_a_child_works_ahead_or_not_as_its_own_device_has_it(self) -> None:
        worker: Any = ReplicaWorker.__new__(ReplicaWorker)
        worker.beginning = Plan(worker=uuid4(), devices=("cuda:0", "cpu"), replicas=2, threads=1), (), SharedState()
        worker.outq, worker.inqW_fd, worker.wait_for_job = Mock(), 5, Mock()
        for index, ahead in ((0, True), (1, False)):
            with (
                patch("inference.worker.processes.pool.current_process_index", return_value=index),
                patch.object(WorkAhead, "run", return_value=True),
                patch.object(Worker, "workloop", return_value=False),
            ):
                self.assertIs(worker.workloop(), ahead)


class NotStartedTests(PoolCase):
    """No process is to be had for the first of two replicas."""

    count = 2

    def refuse(self) -> AbstractContextManager[Any]:
        refused = OSError(errno.ENOMEM, "told so")
        return patch("billiard.context.ForkProcess._Popen", side_effect=refused)

    def until_tried(self, popen: Mock, times: int) -> None:
        self.until(lambda: popen.call_count == times, f"try {times}")

    def test_it_fails_alone_and_is_tried_again_after_pauses_that_grow(self) -> None:
        first, second = self.replicas.replicas
        (other,) = (process.pid for process in self.pool._pool if process.index == 1)
        killed = first.pid
        pauses, opened = [], []
        with self.refuse() as popen, self.assertLogs("inference.worker.replicas.registry", "ERROR") as logs:
            os.kill(killed or 0, signal.SIGKILL)
            for tries in range(1, 11):
                self.until_tried(popen, tries)
                self.assertGreater(first.retry_at, 0.0)
                pauses.append(first.pauses.pause_s)
                opened.append(len(os.listdir("/proc/self/fd")))
                first.retry_at = 0.0 if tries < 10 else math.inf
            for _ in range(5):
                self.hub.run_once()
        self.assertEqual(popen.call_count, 10)
        self.assertEqual(pauses[:4], [2.0, 4.0, 8.0, 16.0])
        self.assertLess(opened[-1], opened[0] + 9)  # other threads may have opened some
        self.assertIn("replica 0 not started", logs.output[0])
        self.assertEqual(([process.pid for process in self.pool._pool], second.pid), ([other], other))
        self.assertEqual([owner is None for owner in self.pool._queues.values()].count(True), 1)
        self.pool.send(other, str, ("text",), callback=self.answers.append)
        self.until(lambda: self.answers, "the other one answers")
        first.retry_at = 0.0
        self.until(lambda: len(self.pool.idle()) == 2, "it is back")
        self.assertEqual(set(first.models.values()), {READY})

    def test_so_it_is_as_the_worker_starts(self) -> None:
        with self.refuse():
            pool: Any = Forked(2, threads=False, context=get_context("fork"))
        self.addCleanup(pool.terminate)
        self.assertEqual(pool._pool, [])
        self.assertTrue(self.replicas.have_reported)


class GivenMoreTests(TestCase):
    """A child that was given two calls."""

    def setUp(self) -> None:
        self.pool: Any = ReplicaPool.__new__(ReplicaPool)
        self.process = SimpleNamespace(pid=11, inqW_fd=5)
        self.pool._pool, self.pool._busy_workers, self.pool._active_writes = [self.process], {5}, set()
        self.pool._mark_worker_as_available = self.pool._busy_workers.discard
        self.pool._cache = {name: SimpleNamespace(_write_to=self.process) for name in (1, 2)}
        self.pool._fileno_to_inq, self.pool._all_inqueues = {5: self.process}, {5}
        self.enterContext(patch.object(ReplicaPool, "_changed"))

    def test_it_is_idle_once_both_are_over_if_it_has_what_it_could_run(self) -> None:
        for job, idle in ((1, list[int]()), (2, [11])):
            self.pool.on_job_ready(job, 0, None, 5)
            del self.pool._cache[job]  # as the pool does then
            self.assertEqual(self.pool.idle(), idle)
        self.pool._all_inqueues.clear()
        self.assertEqual(self.pool.idle(), [])

    def test_it_may_have_more_unless_a_call_is_still_written_to_it_or_it_is_to_load_something(self) -> None:
        self.assertTrue(self.pool.may_have_more(11))
        self.assertFalse(self.pool.may_have_more(12))
        self.assertEqual((self.pool.has(11), self.pool.has(12)), (True, False))
        self.pool._active_writes.add(5)
        self.assertFalse(self.pool.may_have_more(11))
        self.pool._active_writes.clear()
        self.pool.replicas = SimpleNamespace(wanted=lambda pids: pids[0])
        self.assertFalse(self.pool.may_have_more(11))


class AssignmentTests(TestCase):
    """Two children run model a, and each is to load b beside it."""

    def setUp(self) -> None:
        stop_clock(self)
        models = {name: ModelSpec(name=name, engine="x:Y") for name in ("a", "b")}
        replicas = ReplicaRegistry(Plan(worker=uuid4(), devices=("cpu",), replicas=2, threads=1), {"a": models["a"]})
        for index, pid in enumerate((11, 22)):
            replicas.started(index, pid)
            replicas.loaded(LoadReport(pid=pid, models={models["a"].digest: READY}))
        replicas.follow(models)
        self.kept: set[int] = set()  # children in which a batch is open
        self.pool: Any = ReplicaPool.__new__(ReplicaPool)
        self.pool.replicas, self.pool.keeps = replicas, self.kept.__contains__
        self.pool._pool = [SimpleNamespace(pid=pid, inqW_fd=pid) for pid in (11, 22)]
        self.pool._fileno_to_inq = {process.pid: process for process in self.pool._pool}
        self.pool._state, self.pool._cache, self.pool._busy_workers = RUN, {}, set()
        self.pool._proc_alive_timeout = 60
        self.send = self.enterContext(patch.object(ReplicaPool, "send", return_value=None))

    def assign_models(self) -> int | None:
        """The child that is told to load something."""
        self.send.reset_mock()
        self.pool.assign_models()
        if not self.send.called:
            return None
        pid, function, _ = self.send.call_args.args
        self.assertIs(function, entry.apply_assignment)
        return int(pid)

    def test_one_in_which_nothing_is_open_goes_first_and_nobody_is_kept_from_joining(self) -> None:
        self.kept.add(11)
        self.pool._busy_workers.add(22)
        self.assertEqual((self.assign_models(), self.pool.awaited), (None, None))
        self.pool._busy_workers.clear()
        self.assertEqual((self.assign_models(), self.pool.awaited), (22, None))

    def test_where_all_have_open_batches_one_at_a_time_is_waited_for(self) -> None:
        self.kept.update((11, 22))
        self.assertEqual((self.assign_models(), self.pool.awaited), (None, 11))
        self.kept.remove(11)
        self.assertEqual((self.assign_models(), self.pool.awaited), (11, None))

    def test_nobody_is_waited_for_while_another_loads(self) -> None:
        self.kept.update((11, 22))
        self.pool._load_call = self.pool._cache["load"] = object()
        self.assertEqual((self.assign_models(), self.pool.awaited), (None, None))

    def test_the_longer_nobody_could_join_the_longer_until_the_next_try(self) -> None:
        self.kept.update((11, 22))
        self.assign_models()
        self.pool._awaited_at -= 60
        self.kept.remove(11)
        self.assign_models()
        with patch.object(self.pool, "end") as end:
            self.send.call_args.kwargs["error_callback"]("it failed")
        end.assert_called_once_with(11)
        self.assertGreater(self.pool.replicas.try_at, time.monotonic() + 500)
