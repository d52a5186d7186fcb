"""The pool's book-keeping; with whole workers it is in tests/e2e and tests/faults."""

import errno
import functools
import math
import multiprocessing
import os
import pickle
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import TestCase
from unittest.mock import Mock, patch
from uuid import uuid4

from kombu.asynchronous import Hub

from inference.catalog.specs import ModelSpec
from inference.worker.calls import (
    READY,
    Assignment,
    ChildCommand,
    LoadReport,
    ProcessLost,
    RemoteError,
    ReplyKind,
    SharedState,
)
from inference.worker.child import process as child_process
from inference.worker.child import served_calls
from inference.worker.child.loaded_models import LoadedModels
from inference.worker.child.work_ahead import WorkAheadLoop
from inference.worker.processes import process_launcher, replica_pool, replica_process
from inference.worker.processes.replica_pool import ReplicaPool
from inference.worker.processes.replica_process import ReplicaProcess
from inference.worker.replicas.devices import Plan
from inference.worker.replicas.registry import ReplicaRegistry
from tests.conditions import PATIENCE_S, eventually
from tests.inference.worker.test_dispatcher import stop_clock

MORE_THAN_A_PIPE = 3_000_000  # bytes that it holds


def load_all(plan: Plan, index: int, assignment: Assignment, *_: Any) -> LoadReport:
    return LoadReport(pid=os.getpid(), models={spec.digest: READY for spec in assignment})


def load_in_turn(
    plan: Plan, index: int, assignment: Assignment, shared: SharedState, before_next_load: Callable[..., None]
) -> LoadReport:
    """Load one model after the other, of which none takes any time."""
    states = [(spec.digest, READY) for spec in assignment]
    for load in range(1, len(states)):
        before_next_load(LoadReport(pid=os.getpid(), models=dict(states[:load])))
    return LoadReport(pid=os.getpid(), models=dict(states))


def load_on(
    plan: Plan, index: int, assignment: Assignment, shared: SharedState, before_next_load: functools.partial[None]
) -> LoadReport:
    """Load one model, stop until continued, then load another one for long without having been told to."""
    (connection,) = before_next_load.args
    connection.send(ReplyKind.LOADED, value=LoadReport(pid=os.getpid(), models={assignment[0].digest: READY}))
    os.kill(os.getpid(), signal.SIGSTOP)
    connection.send(ReplyKind.LOADING)
    time.sleep(PATIENCE_S)  # it is to be ended in this load
    raise RuntimeError("it was waited for")


def fail(assignment: Assignment) -> LoadReport:
    raise RuntimeError("no library")


def hold_connection(seconds: str) -> int:
    """Leave a process behind that has the sockets of this one. Return its pid."""
    names = [int(name) for name in os.listdir("/proc/self/fd") if Path(f"/proc/self/fd/{name}").is_socket()]
    return subprocess.Popen(["sleep", seconds], pass_fds=names).pid


def make_unpicklable() -> Any:
    return lambda: None


class PoolCase(TestCase):
    """Real processes, forked from this one, which is quicker."""

    count = 1
    options: dict[str, Any] = {}
    names = "a"
    start: Callable[..., LoadReport] = staticmethod(load_all)

    def setUp(self) -> None:
        plan = Plan(worker=uuid4(), devices=("cpu",), replicas=self.count, threads=1)
        self.replicas = ReplicaRegistry(plan, {name: ModelSpec(name=name, engine="x:Y") for name in self.names})
        self.enterContext(patch.object(served_calls, "start_replica", self.start))
        self.enterContext(
            patch.object(
                served_calls, "replica", LoadedModels(worker=uuid4(), device="cpu", host_device="cpu"), create=True
            )
        )
        self.hub = Hub()
        self.addCleanup(self.hub.close)
        self.kept: set[int] = set()  # children in which a batch is open
        self.pool = self.make_pool(**self.options)
        self.pool.register_with_loop(self.hub)
        self.hub.call_repeatedly(0.02, self.pool.start_missing_process)
        self.pool.start_missing_process()
        self.until(lambda: len(self.pool.find_idle_pids()) == self.count, "all are up")
        self.answers: list[Any] = []

    def make_pool(self, **options: Any) -> ReplicaPool:
        fork = multiprocessing.get_context("fork")
        with patch("multiprocessing.get_context", return_value=fork):
            pool = ReplicaPool(
                self.replicas, child_has_open_batch=self.kept.__contains__, load_limit_s=PATIENCE_S, **options
            )
        self.addCleanup(pool.kill_children)
        return pool

    def until(self, condition: Callable[[], Any], what: str) -> None:
        def turned() -> Any:
            self.hub.run_once()
            return condition()

        eventually(turned, what)

    def reconnect(self) -> None:
        """Forget what the event loop watches, as Celery does after it has lost its connection."""
        self.hub.reset()
        self.pool.register_with_loop(self.hub)

    @property
    def first(self) -> ReplicaProcess:
        return self.pool.processes[0]

    def send(self, function: Callable[..., Any], *arguments: Any) -> Any:
        answer = self.answers.append
        return self.pool.send_call(self.first.pid, function, arguments, done=answer, failed=answer)

    def stop(self) -> None:
        os.kill(self.first.pid, signal.SIGSTOP)

    def kill(self) -> None:
        os.kill(self.first.pid, signal.SIGKILL)

    def assert_the_next_one_works(self, killed: int) -> None:
        self.until(lambda: self.pool.find_idle_pids() not in ([], [killed]), "another one is up")
        self.send(str, "of the next")
        self.until(lambda: self.answers, "it answers")
        self.assertEqual(self.answers, ["of the next"])


class EndedChildTests(PoolCase):
    """One that is stopped has not begun what it is sent before it is killed."""

    def sent_in_vain(self, text: str) -> tuple[Any, int]:
        """The call, and its child, which is killed."""
        self.answers.clear()
        self.stop()
        call, killed = self.send(str, text), self.first.pid
        self.kill()
        return call, killed

    def test_what_it_had_not_begun_is_forgotten_and_runs_in_no_other(self) -> None:
        for text in ("short", "x" * MORE_THAN_A_PIPE):
            with self.subTest(len(text)):
                call, killed = self.sent_in_vain(text)
                self.assert_the_next_one_works(killed)
                self.assertFalse(self.pool.is_unanswered(call))

    def test_so_it_is_where_the_connection_ends_at_the_same_time(self) -> None:
        for text in ("short", "x" * MORE_THAN_A_PIPE):
            with self.subTest(len(text)):
                call, killed = self.sent_in_vain(text)
                self.reconnect()
                self.assert_the_next_one_works(killed)
                self.assertFalse(self.pool.is_unanswered(call))

    def test_what_is_sent_to_one_that_is_gone_is_forgotten(self) -> None:
        killed = self.first.pid
        self.kill()
        self.until(lambda: not self.pool.has_pid(killed) or self.first.is_closed, "it is gone")
        call = self.pool.send_call(killed, str, ("text",), done=self.answers.append, failed=self.answers.append)
        self.assertFalse(self.pool.is_unanswered(call))
        self.assert_the_next_one_works(killed)

    def test_one_that_does_not_begin_what_it_is_to_load_is_ended(self) -> None:
        self.stop()
        stopped = self.first.pid
        self.replicas.set_catalog({"b": ModelSpec(name="b", engine="x:Y")})
        self.pool.assign_models()
        with patch.object(ReplicaProcess, "kill") as kill:
            self.pool.start_and_end_processes()
            kill.assert_not_called()
        later = time.monotonic() + 2 * PATIENCE_S
        with patch.object(replica_pool, "SUSPENDED_S", math.inf), patch("time.monotonic", return_value=later):
            self.pool.start_and_end_processes()
        self.assert_the_next_one_works(stopped)
        self.assertIn("b", self.replicas.served_models)

    def test_one_in_which_an_assignment_raised_is_ended_and_not_sent_it_again(self) -> None:
        raised = self.first.pid
        self.replicas.set_catalog({"b": ModelSpec(name="b", engine="x:Y")})
        with patch.object(served_calls, "apply_assignment", fail):
            self.pool.assign_models()
        self.assert_the_next_one_works(raised)
        self.assertIn("b", self.replicas.served_models)

    def test_one_that_can_run_nothing_is_restarted_once_it_has_answered(self) -> None:
        useless = self.first.pid
        self.stop()
        self.send(str, "text")
        self.replicas.note_loaded_models(
            LoadReport(pid=useless, models=dict.fromkeys(self.replicas.goal, "no weights"))
        )
        self.replicas.replicas[0].retry_at = 0.0
        with patch.object(ReplicaProcess, "kill") as kill:
            self.pool.start_and_end_processes()
            kill.assert_not_called()
        os.kill(useless, signal.SIGCONT)
        self.until(lambda: self.answers, "it answers")
        self.answers.clear()
        self.pool.start_and_end_processes()
        self.assert_the_next_one_works(useless)

    def test_what_it_had_begun_is_lost(self) -> None:
        killed = self.first.pid
        call = self.send(time.sleep, 3600)  # does not end
        self.until(lambda: call.is_accepted, "it has begun")
        self.kill()
        self.until(lambda: self.answers, "it is told")
        lost = self.answers.pop()
        self.assertIsInstance(lost, ProcessLost)
        self.assertEqual((lost.exit_code, str(lost)), (-9, "the process that ran it ended: signal 9 (SIGKILL)"))
        self.assert_the_next_one_works(killed)

    def test_what_it_wrote_before_it_ended_counts(self) -> None:
        self.send(str, "written")
        self.send(os._exit, 3)
        self.until(lambda: len(self.answers) == 2, "both are over")
        self.assertEqual(self.answers[0], "written")
        self.assertEqual(self.answers[1].exit_code, 3)

    def test_one_whose_connection_another_process_holds_is_known_to_have_ended(self) -> None:
        killed = self.first.pid
        self.send(hold_connection, "3600")
        self.until(lambda: self.answers, "it has started one")
        holder = self.answers.pop()
        self.addCleanup(os.kill, holder, signal.SIGKILL)
        self.kill()
        self.assert_the_next_one_works(killed)

    def test_so_it_is_where_the_process_that_forked_it_has_ended(self) -> None:
        killed = self.first.pid
        self.send(hold_connection, "3600")
        self.until(lambda: self.answers, "it has started one")
        self.addCleanup(os.kill, self.answers.pop(), signal.SIGKILL)
        with patch.object(process_launcher, "_poll_process", return_value=None):
            self.kill()
            self.until(lambda: self.first.is_orphan, "nothing tells")
        os.waitpid(killed, 0)  # as init does
        self.pool.start_and_end_processes()
        self.assert_the_next_one_works(killed)

    def test_one_that_said_that_it_leaves_and_stays_is_ended(self) -> None:
        stays = self.first.pid
        self.stop()
        self.first.leaves_by = 0.0
        self.pool.start_and_end_processes()
        self.assert_the_next_one_works(stays)

    def test_a_load_is_not_blamed_for_the_time_in_which_the_worker_was_stopped(self) -> None:
        pid = self.first.pid
        self.first.is_up = False
        with patch("time.monotonic", return_value=time.monotonic() + 2 * PATIENCE_S):
            self.pool.start_and_end_processes()
        self.first.is_up = True
        self.send(str, "text")
        self.until(lambda: self.answers, "it answers")
        self.assertEqual(self.first.pid, pid)

    def test_one_whose_message_cannot_be_read_is_ended(self) -> None:
        killed = self.first.pid
        with self.assertLogs("inference.worker.processes.replica_pool", "ERROR"):
            with patch.object(ReplicaProcess, "read_messages", side_effect=pickle.UnpicklingError):
                self.send(str, "text")
                self.until(lambda: self.first.is_given_up, "its answer was not read")
            self.until(lambda: not self.pool.has_pid(killed), "it is ended")
        self.answers.clear()
        self.assert_the_next_one_works(killed)

    def test_what_a_living_one_has_is_kept_as_the_connection_ends(self) -> None:
        for text in ("short", "x" * MORE_THAN_A_PIPE):
            self.stop()
            self.send(str, text)
            self.reconnect()
            os.kill(self.first.pid, signal.SIGCONT)
            self.until(lambda: self.answers, "it answers")
            self.assertEqual(self.answers.pop(), text)

    def test_errors_and_results_that_cannot_be_sent_are_reported(self) -> None:
        self.send(fail, ())
        self.send(make_unpicklable)
        self.until(lambda: len(self.answers) == 2, "both are over")
        self.assertIsInstance(self.answers[0], RuntimeError)
        self.assertIsInstance(self.answers[1], RemoteError)

    def test_an_error_of_a_callback_ends_neither_the_loop_nor_the_child(self) -> None:
        pid = self.first.pid
        with self.assertLogs("inference.worker.processes.replica_pool", "ERROR"):
            call = self.pool.send_call(pid, str, ("text",), done=Mock(side_effect=KeyError), failed=self.answers.append)
            self.until(lambda: not self.pool.is_unanswered(call), "it is over")
        self.send(str, "next")
        self.until(lambda: self.answers, "it answers")
        self.assertEqual((self.answers, self.first.pid), (["next"], pid))


class LeavingTests(PoolCase):
    def test_what_is_open_runs_to_its_end(self) -> None:
        with tempfile.NamedTemporaryFile("r") as file:
            with patch.object(served_calls, "run_open_batches_to_end", lambda: Path(file.name).write_text("it ran")):
                killed = self.first.pid
                self.kill()
                self.until(lambda: self.pool.find_idle_pids() not in ([], [killed]), "one that knows of it is up")
                with self.assertNoLogs("inference.worker.processes.replica_pool", "ERROR"):
                    self.pool.close()
                    self.pool.join(self.hub)
            self.assertEqual(file.read(), "it ran")
        self.assertEqual(self.replicas.replicas[0].shared.command, ChildCommand.DRAIN)
        self.assertIsNone(self.pool.send_call(killed, str, (), done=bool, failed=bool))

    def test_what_has_begun_is_answered(self) -> None:
        self.stop()
        self.send(str, "x" * MORE_THAN_A_PIPE)
        self.pool.close()
        os.kill(self.first.pid, signal.SIGCONT)
        self.pool.join(self.hub)
        self.assertEqual(len(self.answers[0]), MORE_THAN_A_PIPE)

    def test_one_that_does_not_end_by_itself_is_logged(self) -> None:
        self.stop()
        pid = self.first.pid
        self.pool.close()
        self.kill()
        with self.assertLogs("inference.worker.processes.replica_pool", "ERROR") as logs:
            self.pool.join(self.hub)
        self.assertIn(f"pid={pid} did not end by itself: signal 9 (SIGKILL)", logs.output[0])

    def test_timers_run_until_all_have_ended(self) -> None:
        self.stop()
        self.pool.close()
        pid, signals = self.first.pid, [signal.SIGCONT]

        def go_on() -> None:
            if signals:
                os.kill(pid, signals.pop())

        self.hub.call_repeatedly(0.02, go_on)
        self.pool.join(self.hub)

    def test_what_runs_is_not_waited_for_at_a_cold_shutdown(self) -> None:
        self.stop()
        pid = self.first.pid
        self.send(str, "text")
        self.pool.close()
        self.pool.join(self.hub, is_aborted=lambda: True)
        with self.assertRaises(ProcessLookupError):
            os.kill(pid, 0)
        self.assertEqual(self.answers, [])


class WornTests(PoolCase):
    options = {"most_calls": 2}

    def test_one_that_has_run_so_many_calls_is_replaced(self) -> None:
        worn = self.first.pid
        for _ in range(2):
            self.assertEqual(self.first.pid, worn)
            self.send(str, "text")
            self.until(lambda: self.answers, "it answers")
            self.answers.clear()
        self.assert_the_next_one_works(worn)


class StartTests(PoolCase):
    """A child has three models to load, and takes calls after each."""

    names = "abc"
    options = {"most_calls": 2}
    start = staticmethod(load_in_turn)

    def setUp(self) -> None:
        self.enterContext(patch.object(child_process, "PATIENCE_S", PATIENCE_S))
        self.enterContext(patch.object(replica_process, "LOADS_S", 0.0))
        super().setUp()

    def assert_it_answers(self) -> None:
        self.send(str, "text")
        self.until(lambda: self.answers, "it answers")
        self.assertEqual(self.answers, ["text"])
        self.answers.clear()

    def load_next_models(self, *, has_jobs: bool = False) -> None:
        self.pool.load_next_models(lambda _: has_jobs)

    def load_next(self, names: str) -> None:
        def has_loaded() -> bool:
            self.load_next_models()
            return self.replicas.runnable == set(names)

        self.until(has_loaded, f"it has {names}")

    def test_it_runs_calls_after_each_load_and_loads_the_next_when_told(self) -> None:
        started = self.first.pid
        for names in ("a", "ab"):
            self.assertEqual((self.replicas.runnable, self.replicas.have_all_reported), (set(names), False))
            for _ in range(3):
                self.assert_it_answers()
            self.load_next("ab" if names == "a" else "abc")
        self.assertTrue(self.replicas.have_all_reported)
        self.assert_it_answers()  # the calls before do not count for `most_calls`
        self.assertEqual(self.pool.find_idle_pids(), [started])
        self.assert_it_answers()
        self.assert_the_next_one_works(started)

    def test_it_loads_nothing_while_a_call_or_a_batch_is_to_be_run(self) -> None:
        self.load_next_models()  # from now on messages may come
        self.stop()
        self.send(str, "text")
        with patch("time.monotonic", return_value=time.monotonic() + PATIENCE_S):
            self.load_next_models()
            self.assertEqual(self.replicas.runnable, {"a"})
        os.kill(self.first.pid, signal.SIGCONT)
        self.until(lambda: self.answers, "it answers")
        self.kept.add(self.first.pid)
        with patch("time.monotonic", return_value=time.monotonic() + PATIENCE_S):
            self.load_next_models()
            self.assertEqual((self.pool.find_idle_pids(), self.replicas.runnable), ([self.first.pid], {"a"}))
            self.assertTrue(self.pool.is_to_load_next(self.first.pid))
            self.kept.clear()
            self.assertEqual(self.pool.find_idle_pids(), [])
        self.load_next("ab")

    def test_the_first_messages_have_a_moment_from_when_their_queues_are_consumed(self) -> None:
        self.assertIsNone(self.pool.find_next_load_in_s())
        with patch("time.monotonic", return_value=time.monotonic() + PATIENCE_S):
            self.load_next_models()  # the first look after the load, however late it comes
            self.assertEqual((self.replicas.runnable, self.pool.find_idle_pids()), ({"a"}, [self.first.pid]))
            self.assertAlmostEqual(self.pool.find_next_load_in_s() or 0.0, replica_process.FIRST_MESSAGES_S)

    def test_another_connection_to_the_broker_leaves_it_as_it_is(self) -> None:
        self.reconnect()
        self.assert_it_answers()
        self.load_next("ab")

    def test_it_runs_what_it_has_begun_as_the_worker_leaves(self) -> None:
        self.stop()
        self.send(str, "text")
        self.pool.close()
        os.kill(self.first.pid, signal.SIGCONT)
        with self.assertNoLogs("inference.worker.processes.replica_pool", "ERROR"):
            self.pool.join(self.hub)
        self.assertEqual(self.answers, ["text"])

    def test_it_loads_the_next_while_jobs_wait_once_it_has_taken_calls_for_as_long_as_its_loads_took(self) -> None:
        self.load_next_models()
        pid, began = self.first.pid, time.monotonic()
        with patch.object(self.first, "load_began_at", self.first.loaded_at - 10.0):
            for later, runnable in ((5.0, {"a"}), (11.0, set())):
                with patch("time.monotonic", return_value=began + later):
                    self.load_next_models(has_jobs=True)
                    self.assertEqual(
                        (self.replicas.runnable, pid in self.pool.find_idle_pids()), (runnable, bool(runnable))
                    )

    def test_one_that_dies_in_a_call_is_replaced_though_work_is_given_out_meanwhile(self) -> None:
        killed = self.first.pid

        def give_out_work(error: BaseException) -> None:
            with patch("time.monotonic", return_value=time.monotonic() + PATIENCE_S):
                self.load_next_models()
            self.answers.append(error)

        self.load_next_models()
        self.pool.send_call(killed, os._exit, (3,), done=bool, failed=give_out_work)
        self.until(lambda: self.answers, "it is lost")
        self.answers.clear()
        self.assert_the_next_one_works(killed)

    def test_one_that_is_given_up_is_told_nothing(self) -> None:
        given_up = self.first.pid
        self.load_next_models()
        with patch.object(ReplicaProcess, "kill"), patch.object(ReplicaProcess, "send_call") as send:
            self.pool.end_process(given_up)
            with patch("time.monotonic", return_value=time.monotonic() + PATIENCE_S):
                self.load_next_models()
            send.assert_not_called()
        self.kill()
        self.assert_the_next_one_works(given_up)

    def test_one_that_ends_there_is_replaced(self) -> None:
        killed = self.first.pid
        self.kill()
        self.assert_the_next_one_works(killed)


class UntoldTests(PoolCase):
    """The main process says nothing, as its event loop stands while the broker is away."""

    names = "abc"
    start = staticmethod(load_in_turn)

    def setUp(self) -> None:
        self.enterContext(patch.object(child_process, "PATIENCE_S", 0.0))
        self.enterContext(patch.object(replica_process, "LOADS_S", 0.0))
        super().setUp()

    def test_the_child_loads_all_the_same(self) -> None:
        self.until(lambda: self.replicas.have_all_reported, "it has loaded all")
        self.assertEqual(self.replicas.runnable, {"a", "b", "c"})
        self.send(str, "text")
        self.until(lambda: self.answers, "it answers")


class QuickStartTests(PoolCase):
    names = "abc"
    start = staticmethod(load_in_turn)

    def test_quick_loads_follow_each_other_at_once(self) -> None:
        self.assertEqual((self.replicas.runnable, self.replicas.have_all_reported), ({"a", "b", "c"}, True))


class LoadingOnTests(PoolCase):
    names = "ab"
    start = staticmethod(load_on)

    def setUp(self) -> None:
        self.enterContext(patch.object(replica_process, "LOADS_S", 0.0))
        super().setUp()

    def test_one_that_loads_on_by_itself_is_not_waited_for_as_the_worker_leaves(self) -> None:
        stat = Path(f"/proc/{self.first.pid}/stat")
        self.until(lambda: " T " in stat.read_text(), "it is stopped")
        self.pool.close()
        os.kill(self.first.pid, signal.SIGCONT)
        with self.assertNoLogs("inference.worker.processes.replica_pool", "ERROR"):
            self.pool.join(self.hub)


class HeavyTests(PoolCase):
    options = {"most_kib": 1}

    def test_one_that_has_so_much_memory_is_replaced_once_no_batch_is_open_in_it(self) -> None:
        heavy = self.first.pid
        self.kept.add(heavy)
        for _ in range(2):
            self.send(str, "text")
            self.until(lambda: self.answers, "it answers")
            self.answers.clear()
        self.assertEqual(self.pool.find_idle_pids(), [heavy])
        self.kept.clear()
        self.assertEqual(self.pool.find_idle_pids(), [])
        self.send(str, "text")
        self.until(lambda: self.answers, "it answers")
        self.answers.clear()
        self.assert_the_next_one_works(heavy)


class LoopTests(TestCase):
    def test_a_child_works_ahead_or_not_as_its_own_device_has_it(self) -> None:
        plan = Plan(worker=uuid4(), devices=("cuda:0", "cpu"), replicas=2, threads=1)
        for index, ahead in ((0, True), (1, False)):
            with (
                patch.object(WorkAheadLoop, "run", side_effect=SystemExit) as works_ahead,
                patch.object(child_process, "run_calls", side_effect=SystemExit) as runs_calls,
                self.assertRaises(SystemExit),
            ):
                child_process.run_loop(Mock(), plan, index)
            self.assertEqual((works_ahead.called, runs_calls.called), (ahead, not ahead))


class NotStartedTests(PoolCase):
    """No process is to be had for the first of two replicas."""

    count = 2

    def refuse(self) -> AbstractContextManager[Any]:
        return patch.object(ForkProcess, "_Popen", side_effect=OSError(errno.ENOMEM, "told so"))

    def test_it_fails_alone_and_is_tried_again_after_pauses_that_grow(self) -> None:
        first, second = self.replicas.replicas
        other, killed = self.pool.processes[1].pid, first.pid
        pauses, opened = [], []
        with self.refuse() as popen, self.assertLogs("inference.worker.replicas.registry", "ERROR") as logs:
            os.kill(killed or 0, signal.SIGKILL)
            for tries in range(1, 11):
                self.until(lambda: len(logs.records) == tries, f"try {tries}")  # noqa: B023 - called before the next
                pauses.append(first.backoff.pause_s)
                opened.append(len(os.listdir("/proc/self/fd")))
                first.retry_at = 0.0 if tries < 10 else math.inf
            for _ in range(5):
                self.hub.run_once()
        self.assertEqual(popen.call_count, 10)
        self.assertEqual(pauses[:4], [2.0, 4.0, 8.0, 16.0])
        self.assertLess(opened[-1], opened[0] + 9)  # other threads may have opened some
        self.assertIn("replica 0 not started", logs.output[0])
        self.assertEqual(([process.pid for process in self.pool.processes.values()], second.pid), ([other], other))
        self.pool.send_call(other, str, ("text",), done=self.answers.append, failed=self.answers.append)
        self.until(lambda: self.answers, "the other one answers")
        first.retry_at = 0.0
        self.until(lambda: len(self.pool.find_idle_pids()) == 2, "it is back")
        self.assertEqual(set(first.models.values()), {READY})

    def test_so_it_is_as_the_worker_starts(self) -> None:
        pool = self.make_pool()
        with self.refuse():
            pool.start_missing_process()
            pool.register_with_loop(self.hub)
            self.until(lambda: self.replicas.have_all_reported and not pool.processes, "it was tried")
        self.assertTrue(self.replicas.have_all_reported)

    def test_so_it_is_where_no_connection_is_to_be_had(self) -> None:
        refused = OSError(errno.EMFILE, "told so")
        opened = len(os.listdir("/proc/self/fd"))
        for function in ("socket.socketpair", "os.memfd_create", "os.truncate", "socket.send_fds", "mmap.mmap"):
            with self.subTest(function), patch(function, side_effect=refused):
                for _ in range(10):
                    with self.assertRaises(OSError):
                        ReplicaProcess(0)
        pool = self.make_pool()
        with patch("socket.socketpair", side_effect=refused):
            pool.start_missing_process()
        pool.kill_children()
        self.assertIn("told so", self.replicas.find_load_failure(next(iter(self.replicas.specs.values()))))
        self.assertLess(len(os.listdir("/proc/self/fd")), opened + 9)  # other threads may have opened some


class Process(SimpleNamespace):
    """A child process that is played by a test."""

    def __init__(self, pid: int) -> None:
        super().__init__(
            pid=pid,
            calls={},
            is_up=True,
            is_closed=False,
            is_given_up=False,
            is_worn=False,
            unsent=b"",
            kill=Mock(),
            is_awaited=True,
            has_taken_its_calls=False,
        )

    @property
    def is_starting(self) -> bool:
        return not self.is_up


class PlayedCase(TestCase):
    """Two children run model a, and each is to load b beside it."""

    def setUp(self) -> None:
        stop_clock(self)
        models = {name: ModelSpec(name=name, engine="x:Y") for name in ("a", "b")}
        plan = Plan(worker=uuid4(), devices=("cpu",), replicas=2, threads=1)
        self.replicas = ReplicaRegistry(plan, {"a": models["a"]})
        for index, pid in enumerate((11, 22)):
            self.replicas.note_start(index, pid)
            self.replicas.note_loaded_models(LoadReport(pid=pid, models={models["a"].digest: READY}))
        self.models = models
        self.kept: set[int] = set()  # children in which a batch is open
        self.pool = ReplicaPool(self.replicas, child_has_open_batch=self.kept.__contains__, load_limit_s=60)
        self.addCleanup(self.pool.kill_children)
        self.pool.processes = {index: cast("ReplicaProcess", Process(pid)) for index, pid in enumerate((11, 22))}


class GivenMoreTests(PlayedCase):
    def test_one_is_idle_once_all_its_calls_are_over_if_it_has_what_it_could_run(self) -> None:
        first = self.pool.processes[0]
        first.calls = {1: Mock(), 2: Mock()}
        self.assertEqual((self.pool.find_idle_pids(), self.pool.busy_count), ([22], 1))
        del first.calls[1]
        self.assertEqual(self.pool.find_idle_pids(), [22])
        first.calls.clear()
        self.assertEqual((self.pool.find_idle_pids(), self.pool.busy_count), ([11, 22], 0))
        first.is_up = False
        self.assertEqual(self.pool.find_idle_pids(), [22])
        self.replicas.note_loaded_models(LoadReport(pid=22, models={}))
        self.assertEqual(self.pool.find_idle_pids(), [])

    def test_it_may_have_more_unless_a_call_is_still_written_to_it_or_it_is_to_load_something(self) -> None:
        self.assertTrue(self.pool.can_take_another_call(11))
        self.assertFalse(self.pool.can_take_another_call(12))
        self.assertEqual((self.pool.has_pid(11), self.pool.has_pid(12)), (True, False))
        self.pool.processes[0].unsent = bytearray(b"x")
        self.assertFalse(self.pool.can_take_another_call(11))
        self.pool.processes[0].unsent = bytearray()
        self.replicas.set_catalog(self.models)
        self.assertFalse(self.pool.can_take_another_call(11))


class AssignmentTests(PlayedCase):
    def setUp(self) -> None:
        super().setUp()
        self.replicas.set_catalog(self.models)
        self.send = self.enterContext(patch.object(ReplicaPool, "send_call", return_value=None))

    def assign_models(self) -> int | None:
        """The child that is told to load something."""
        self.send.reset_mock()
        self.pool.assign_models()
        if not self.send.called:
            return None
        pid, function, _ = self.send.call_args.args
        self.assertIs(function, served_calls.apply_assignment)
        return int(pid)

    def find_awaited(self) -> int | None:
        """The child that is to load something once its open batches have ended."""
        return next(filter(self.pool.is_to_load_next, (11, 22)), None)

    def test_one_in_which_nothing_is_open_goes_first_and_nobody_is_kept_from_joining(self) -> None:
        self.kept.add(11)
        self.pool.processes[1].calls = {1: Mock()}
        self.assertEqual((self.assign_models(), self.find_awaited()), (None, None))
        self.pool.processes[1].calls.clear()
        self.assertEqual((self.assign_models(), self.find_awaited()), (22, None))

    def test_where_all_have_open_batches_one_at_a_time_is_waited_for(self) -> None:
        self.kept.update((11, 22))
        self.assertEqual((self.assign_models(), self.find_awaited()), (None, 11))
        self.kept.remove(11)
        self.assertEqual((self.assign_models(), self.find_awaited()), (11, None))

    def test_nobody_is_waited_for_while_another_loads(self) -> None:
        self.kept.update((11, 22))
        self.send.return_value = Mock(is_over=False)
        self.kept.remove(11)
        self.assertEqual(self.assign_models(), 11)
        self.kept.add(11)
        self.assertEqual((self.assign_models(), self.find_awaited()), (None, None))

    def test_the_longer_nobody_could_join_the_longer_until_the_next_try(self) -> None:
        self.kept.update((11, 22))
        self.assign_models()
        self.kept.remove(11)
        now = time.monotonic()
        with patch("time.monotonic", return_value=now + 60), patch.object(self.pool, "end_process") as end:
            self.assign_models()
            self.send.call_args.kwargs["failed"](RuntimeError("it failed"))
        end.assert_called_once_with(11)
        self.assertGreater(self.replicas.try_at, now + 500)
