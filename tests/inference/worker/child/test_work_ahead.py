"""A child that works ahead: what its threads do, and what the main process gives it and takes from its end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any
from unittest import TestCase
from unittest.mock import Mock, patch
from uuid import UUID, uuid4

from inference import errors
from inference.catalog.specs import ModelSpec
from inference.clock import get_database_time
from inference.engines.base import Engine
from inference.store.outcome_records import Outcome
from inference.store.transitions import Claimed
from inference.worker.calls import READY, BatchCall, ChildCommand, LoadReport, ProcessLost, RemoteError, ReplyKind
from inference.worker.child import batch_job_rows, served_calls
from inference.worker.child.batch_run import BatchRun
from inference.worker.child.connection import ChildCall, MainConnection
from inference.worker.child.loaded_models import LoadedModels
from inference.worker.child.work_ahead import WorkAheadLoop
from inference.worker.dispatcher import STUCK_S
from inference.worker.scheduling.held_jobs import HeldJob
from tests.conditions import PATIENCE_S, eventually
from tests.inference.worker.test_dispatcher import CATALOG, PID, DispatcherCase


class Gated(Engine):
    """Each call waits for its turn, and says that it has begun."""

    def load(self, device: str) -> None:
        self.begun: SimpleQueue[list[Any]] = SimpleQueue()
        self.turns: SimpleQueue[BaseException | None] = SimpleQueue()
        self.threads: set[threading.Thread] = set()
        self.may_read = threading.Event()

    def prepare(self, inputs: list[Any], parameters: dict[str, Any]) -> Any:
        if inputs == ["unreadable"]:
            raise ValueError(inputs)
        if inputs == ["ends"]:
            raise SystemExit
        if inputs == ["slow"]:
            assert self.may_read.wait(PATIENCE_S)
        return [f"{text}, read ahead" for text in inputs]

    def predict_prepared_inputs(self, prepared: Any, parameters: dict[str, Any]) -> list[Any] | None:
        return self.predict(prepared, parameters)

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        self.threads.add(threading.current_thread())
        self.begun.put(inputs)
        if error := self.turns.get(timeout=PATIENCE_S):
            raise error
        return inputs


class Connection(MainConnection):
    """A connection whose other end is a test."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[ChildCall | None] = SimpleQueue()
        self.sent: list[tuple[ReplyKind, int, Any]] = []
        self.unsendable: set[int] = set()  # calls whose result cannot be pickled

    def receive_call(self) -> ChildCall:
        if (call := self.calls.get()) is None:
            raise SystemExit
        return call

    def send(self, kind: ReplyKind, number: int = 0, value: Any = None) -> None:
        if kind == ReplyKind.DONE and number in self.unsendable:
            raise TypeError("cannot pickle it")
        self.sent.append((kind, number, value))


class LineTests(TestCase):
    """The pipe, the engine and the database are played by the test."""

    def setUp(self) -> None:
        self.engine = Gated(ModelSpec(name="m", engine="x:Y"))
        self.engine.load("cpu")
        spec = self.engine.spec
        self.replica = LoadedModels(
            worker=uuid4(),
            device="cpu",
            host_device="cpu",
            specs={spec.digest: spec},
            engines={spec.load_digest: self.engine},
        )
        self.enterContext(patch.object(served_calls, "replica", self.replica, create=True))
        self.enterContext(patch("sys.setswitchinterval"))
        self.claimed: SimpleQueue[str] = SimpleQueue()
        self.recorded: SimpleQueue[str] = SimpleQueue()
        self.inputs: dict[int, list[str]] = {}  # of a call, where they are others
        self.may_record = threading.Event()
        self.may_record.set()
        self.enterContext(patch.object(batch_job_rows, "claim_jobs", self.claim))
        self.enterContext(patch.object(batch_job_rows, "record_outcomes", self.record))
        self.connection = Connection()
        self.thread = threading.Thread(target=self.run_line)
        self.thread.start()
        self.addCleanup(self.thread.join, PATIENCE_S)
        self.addCleanup(self.connection.calls.put, None)
        self.addCleanup(self.may_record.set)
        self.addCleanup(self.engine.may_read.set)

    def run_line(self) -> None:
        with self.assertRaises(SystemExit):
            WorkAheadLoop(self.connection).run()

    def claim(self, call: BatchCall, replica: LoadedModels) -> list[Claimed]:
        self.claimed.put(call.model)
        if call.takes_over:
            raise errors.StoreUnavailable("away")
        return [
            Claimed(
                id=job_id,
                model="m",
                inputs=text,
                parameters={},
                size=1,
                length=1,
                created_at=get_database_time(),
                started_at=get_database_time(),
                whole=None,
                place=None,
            )
            for job_id, text in zip(call.job_ids, self.inputs.get(call.number, ["text"]), strict=True)
        ]

    def record(self, batch: UUID, outcomes: list[Outcome], **_: Any) -> list[Outcome]:
        assert self.may_record.wait(PATIENCE_S)
        self.recorded.put("m")
        return outcomes

    def give(self, number: int, **fields: Any) -> BatchCall:
        call = BatchCall(
            batch=uuid4(),
            number=number,
            model="m",
            digest=self.engine.spec.digest,
            time_limit_s=3600,
            job_ids=tuple(uuid4() for _ in self.inputs.get(number, [""])),
            **fields,
        )
        self.connection.calls.put(ChildCall(number, served_calls.run_batch, (call,)))
        return call

    def numbers(self, *kinds: ReplyKind) -> list[int]:
        return [number for kind, number, _ in self.connection.sent if kind in kinds]

    @property
    def answers(self) -> list[int]:
        return self.numbers(ReplyKind.DONE, ReplyKind.FAILED)

    def failure_of(self, number: int) -> Any:
        """What the call failed with, or nothing."""
        failed = {number: value for kind, number, value in self.connection.sent if kind == ReplyKind.FAILED}
        self.assertIn(number, self.answers)
        return failed.get(number)

    def until_answered(self, *numbers: int) -> None:
        eventually(lambda: self.answers == [*numbers], f"{numbers} are answered, in this order")

    def test_while_one_computes_the_next_is_claimed_and_the_one_before_recorded(self) -> None:
        self.may_record.clear()
        for number in (1, 2, 3):
            self.give(number)
        self.engine.turns.put(None)
        self.assertEqual([self.engine.begun.get(timeout=PATIENCE_S) for _ in range(2)], [["text"], ["text"]])
        for _ in range(3):
            self.claimed.get(timeout=PATIENCE_S)
        self.assertEqual((self.replica.shared.computing, self.answers), (2, []))
        self.may_record.set()
        self.until_answered(1)
        self.engine.turns.put(None)
        self.engine.turns.put(None)
        self.until_answered(1, 2, 3)
        self.assertEqual((self.numbers(ReplyKind.ACCEPTED), self.engine.threads), ([1, 2, 3], {self.thread}))

    def test_inputs_are_read_ahead_but_of_what_is_looked_into_and_what_cannot_be_read(self) -> None:
        self.engine.prepares = True
        self.inputs[3] = ["unreadable"]
        self.give(1)
        self.assertEqual(self.engine.begun.get(timeout=PATIENCE_S), ["text, read ahead"])
        self.give(2, again=True)
        self.give(3)
        for _ in range(3):
            self.engine.turns.put(None)
        self.until_answered(1, 2, 3)
        self.assertEqual([self.engine.begun.get(timeout=PATIENCE_S) for _ in range(2)], [["text"], ["unreadable"]])
        self.assertIsNone(self.failure_of(3))

    def test_what_is_read_for_too_long_runs_into_the_limit_of_its_own_batch(self) -> None:
        """No alarm comes for the one that computes meanwhile."""
        self.engine.prepares = True
        self.inputs[2] = ["slow"]
        shared = self.replica.shared
        self.give(1)
        self.give(2)
        eventually(lambda: (shared.computing, shared.reading) == (1, 2), "the second is read beside the first")
        self.engine.turns.put(None)
        self.until_answered(1)
        eventually(lambda: shared.computing == 2 and signal.getitimer(signal.ITIMER_REAL)[0] > 0, "its limit runs")
        self.assertEqual(shared.reading, 2)
        self.engine.may_read.set()
        self.engine.turns.put(None)
        self.until_answered(1, 2)
        self.assertEqual((shared.reading, signal.getitimer(signal.ITIMER_REAL)[0]), (0, 0))

    def test_inputs_that_would_end_the_process_when_read_ahead_are_left_to_their_own_turn(self) -> None:
        self.engine.prepares = True
        self.inputs[2] = ["ends"]
        for number in (1, 2, 3):
            self.give(number)
            self.engine.turns.put(None)
        self.until_answered(1, 2, 3)
        self.assertEqual([self.failure_of(number) for number in (1, 2, 3)], [None, None, None])

    def test_what_cannot_be_sent_is_reported_and_ends_nothing(self) -> None:
        self.give(1)
        self.give(2)
        self.connection.unsendable.add(1)
        self.engine.turns.put(None)
        self.engine.turns.put(None)
        self.until_answered(1, 2)
        self.assertIn("TypeError", self.failure_of(1).raised + str(self.failure_of(1)))
        self.assertIsNone(self.failure_of(2))

    def test_one_that_cannot_be_claimed_is_reported_and_the_others_go_on(self) -> None:
        self.give(1)
        self.give(2, takes_over=(uuid4(),))
        self.give(3)
        self.engine.turns.put(None)
        self.engine.turns.put(None)
        self.until_answered(1, 2, 3)
        self.assertIsInstance(self.failure_of(2), errors.StoreUnavailable)
        self.assertIsNone(self.failure_of(3))

    def test_what_a_claim_or_a_record_raises_can_be_read_elsewhere(self) -> None:
        for number, stage in enumerate(("claim_jobs", "record_outcomes"), 1):
            with self.subTest(stage), patch.object(BatchRun, stage, side_effect=KeyError(object())):
                self.give(number)
                if stage == "record_outcomes":
                    self.engine.turns.put(None)
                self.until_answered(*range(1, number + 1))
                self.assertIsInstance(self.failure_of(number), RemoteError)

    def test_on_a_device_that_failed_nothing_else_is_computed(self) -> None:
        self.give(1)
        self.give(2)
        self.engine.turns.put(RuntimeError("CUDA error: device-side assert triggered"))
        self.until_answered(1, 2)
        self.assertIsInstance(self.failure_of(1), errors.DeviceFailed)
        self.assertIsInstance(self.failure_of(2), errors.NotYet)

    def test_an_engine_that_ends_its_process_is_reported_first(self) -> None:
        self.give(1)
        self.engine.turns.put(SystemExit())
        self.thread.join(PATIENCE_S)
        self.assertIsInstance(self.failure_of(1), SystemExit)

    def test_other_calls_have_their_turn_in_the_thread_of_the_engines(self) -> None:
        ran: list[threading.Thread] = []
        self.give(1)
        self.connection.calls.put(ChildCall(2, lambda: ran.append(threading.current_thread()), ()))
        self.engine.turns.put(None)
        self.until_answered(1, 2)
        self.assertEqual(ran, [self.thread])

    def test_what_was_begun_is_answered_when_there_will_be_no_more(self) -> None:
        self.give(1)
        self.connection.calls.put(None)
        self.engine.turns.put(None)
        self.thread.join(PATIENCE_S)
        self.assertEqual(self.answers, [1])

    def test_what_is_open_runs_to_its_end_then_in_the_thread_of_the_engines(self) -> None:
        ran: list[Any] = []
        opened = Mock(run_all_to_end=lambda: ran.append(threading.current_thread()))
        self.enterContext(patch.object(served_calls, "opened", opened))
        self.replica.shared.command = ChildCommand.DRAIN
        self.connection.calls.put(None)
        self.thread.join(PATIENCE_S)
        self.assertEqual(ran, [self.thread])


class GivenTests(DispatcherCase):
    """What the main process gives to a child that works ahead."""

    def setUp(self) -> None:
        super().setUp()
        self.replicas.plan = replace(self.replicas.plan, ahead=True)
        self.may_have_more: Callable[[int], bool] = lambda pid: True
        self.enterContext(
            patch.object(type(self.pool), "can_take_another_call", lambda _, pid: self.may_have_more(pid))
        )

    def give(self, batches: int) -> list[SimpleNamespace]:
        """The calls of so many full batches, and of one that is left."""
        for _ in range(batches * CATALOG["a"].max_batch_size):
            self.add()
        self.dispatcher.send_next_calls()
        return self.pool.calls

    def computing(self, call: SimpleNamespace | None, *, reading: SimpleNamespace | None = None) -> None:
        shared = self.replicas.replicas[0].shared
        shared.computing, shared.reading = (each.batch.number if each else 0 for each in (call, reading))

    def accept_all(self) -> None:
        for call in self.pool.calls:
            call.accept(PID)

    def test_it_is_given_three_and_the_next_as_one_is_over(self) -> None:
        calls = self.give(5)
        self.assertEqual([len(call.batch.job_ids) for call in calls], [8, 8, 8])
        self.assertEqual([call.batch.ahead_s for call in calls], [0, 5, 10])
        self.pool.finish(calls[0], overhead_s=0.01)
        self.assertEqual((len(calls), len(self.dispatcher.backlog)), (4, 8))

    def test_of_calls_that_are_long_it_is_given_two_so_that_the_next_is_chosen_later(self) -> None:
        calls = self.give(5)
        for call in calls[:2]:
            self.pool.finish(call, overhead_s=0.001)
        self.assertEqual([call.over for call in calls], [True, True, False, False])

    def test_a_child_on_a_cpu_is_given_one(self) -> None:
        self.replicas.plan = replace(self.replicas.plan, ahead=None)
        self.assertEqual(len(self.give(5)), 1)

    def test_a_child_that_is_to_load_something_is_given_no_more(self) -> None:
        self.may_have_more = lambda pid: False
        self.assertEqual(len(self.give(5)), 1)

    def test_it_has_messages_for_all_that_it_may_be_given(self) -> None:
        self.assertEqual(self.dispatcher.prefetch_count, 4 * 8)

    def test_where_a_job_must_run_alone_no_other_is_given_meanwhile(self) -> None:
        self.add()
        self.dispatcher.send_next_calls()
        self.add(alone=True, priority=1)
        self.assertEqual(len(self.give(3)), 1)

    def test_what_generates_step_by_step_waits_for_its_turn_and_holds_up_what_came_later(self) -> None:
        digest = CATALOG["b"].digest
        models = {spec.digest: READY for spec in CATALOG.values()}
        self.replicas.note_loaded_models(LoadReport(pid=PID, models=models, steps=frozenset({digest})))
        self.add("a")
        self.dispatcher.send_next_calls()
        self.add("b")
        self.assertEqual([call.batch.model for call in self.give(3)], ["a"])
        self.pool.finish(self.last)
        self.assertEqual(self.last.batch.model, "b")
        self.assertEqual(len(self.pool.calls), 2)

    def test_of_a_child_that_dies_the_batch_that_it_computed_is_looked_into_and_the_others_run_again(self) -> None:
        first, second, third = self.give(3)
        self.accept_all()
        self.computing(second)
        for call in (first, second, third):
            self.pool.lose(call)
        parts = self.dispatcher.backlog.isolation.parts
        sizes = [len(call.batch.job_ids) for call in self.pool.calls[3:]] + [len(part.jobs) for part in parts]
        self.assertEqual(sorted(sizes), [4, 8, 8])
        self.assertEqual(sum(part.search is not None for part in parts) + bool(self.searched()), 1)

    def searched(self) -> list[UUID]:
        """Batches that run now as steps of a search."""
        return [batch.id for batch in self.dispatcher.batches.values() if batch.search]

    def test_what_is_run_again_has_no_company(self) -> None:
        calls = self.give(2)
        self.accept_all()
        self.computing(calls[0])
        for call in list(calls):
            self.pool.lose(call)
        self.give(3)
        running = [call for call in self.pool.calls if not call.over]
        self.assertEqual(len(running), 1)
        self.assertTrue(running[0].batch.takes_over)

    def test_nobody_is_to_blame_where_nothing_was_computed(self) -> None:
        calls = self.give(2)
        self.accept_all()
        self.computing(None)
        for call in list(calls):
            self.pool.lose(call)
        self.assertEqual(self.searched(), [])
        self.assertEqual([held.crashes_alone for held in self.dispatcher.backlog.held.values()], [0] * 16)

    def two_single_jobs(self) -> list[SimpleNamespace]:
        for _ in range(2):
            self.add()
            self.dispatcher.send_next_calls()
        self.accept_all()
        return list(self.pool.calls)

    def held(self, call: SimpleNamespace) -> HeldJob:
        return self.dispatcher.backlog.held[str(call.batch.job_ids[0])]

    def test_a_job_is_not_at_fault_before_it_has_run_alone_if_its_process_ended_while_another_was_read(
        self,
    ) -> None:
        for cause in (signal.SIGALRM, signal.SIGSEGV):
            with self.subTest(cause.name):
                self.setUp()
                first, second = self.two_single_jobs()
                self.computing(first, reading=second)
                for call in (first, second):
                    self.pool.lose(call, ProcessLost(-cause))
                again = self.last
                self.assertEqual((again.batch.job_ids, again.batch.again), (first.batch.job_ids, True))
                self.assertEqual(
                    [(self.held(call).crashes_alone, self.held(call).verdict) for call in (first, second)],
                    [(0, "")] * 2,
                )
                self.accept_all()
                self.computing(again)
                self.pool.lose(again, ProcessLost(-cause))
                self.assertEqual(self.held(first).crashes_alone, 1)

    def test_one_that_is_read_itself_as_its_time_ends_is_at_fault(self) -> None:
        first, _ = self.two_single_jobs()
        self.computing(first, reading=first)
        self.pool.lose(first, ProcessLost(-signal.SIGALRM))
        self.assertEqual(self.held(first).crashes_alone, 1)

    def test_past_the_limit_only_the_batch_that_was_computed_is_at_fault(self) -> None:
        first, second = self.two_single_jobs()
        self.computing(first)
        for call in (first, second):
            self.pool.lose(call, ProcessLost(-signal.SIGALRM))
        self.assertEqual([self.held(call).crashes_alone for call in (first, second)], [1, 0])

    def test_only_the_first_in_a_child_can_be_stuck_and_those_behind_it_end_with_it(self) -> None:
        calls = self.give(2)
        self.accept_all()
        batches = [self.dispatcher.batches[call.batch.batch] for call in calls]
        batches[1].accepted_at -= 1e6
        with patch("os.kill", Mock()) as kill:
            self.dispatcher.end_stuck_and_expired()
            kill.assert_not_called()
            batches[0].accepted_at -= STUCK_S + 1e3
            self.dispatcher.end_stuck_and_expired()
            kill.assert_called_once()
        self.assertEqual([batch.stuck for batch in batches], [True, True])

    def test_the_time_of_a_batch_counts_from_the_end_of_the_one_before(self) -> None:
        calls = self.give(2)
        self.accept_all()
        second = self.dispatcher.batches[calls[1].batch.batch]
        second.accepted_at = 0.0
        self.pool.finish(calls[0])
        self.assertGreater(second.accepted_at, 0.0)
