"""The dispatcher against a pool that is driven by hand; real processes are in tests/e2e and tests/faults."""

import math
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest import TestCase
from unittest.mock import Mock, patch
from uuid import UUID, uuid4

from inference import clock, errors
from inference.batching.costs import CostModel
from inference.batching.queue import BatchQueue, Item, Limits
from inference.batching.shares import ONE_IN
from inference.catalog.specs import ModelSpec
from inference.errors import DeviceFailed, ModelUnavailable, StoreUnavailable
from inference.worker.calls import READY, BatchReport, LoadReport, ProcessLost, RemoteError
from inference.worker.dispatcher import GIVE_UP_S, KILL_GRACE_S, STUCK_S, Dispatcher
from inference.worker.processes.replica_pool import ReplicaPool
from inference.worker.replicas.devices import Plan
from inference.worker.replicas.registry import ReplicaRegistry
from inference.worker.replicas.replica import ReplicaState
from inference.worker.scheduling.backlog import Backlog
from inference.worker.scheduling.held_jobs import MOST_OVER
from inference.worker.scheduling.isolation import CRASHES_ALONE, LONGEST_RETRY_S, LONGEST_STUCK_S, MOST_SUSPENSIONS
from inference.worker.scheduling.residency_controller import ResidencyController
from inference.worker.scheduling.settlement import SUSPENDED
from inference.worker.scheduling.unfetched_job_finder import UnfetchedJobFinder
from tests.conditions import PATIENCE_S

PID = 4711
PAST_LIMIT = ProcessLost(-signal.SIGALRM)
CATALOG = {
    "a": ModelSpec(name="a", engine="x:Y", max_batch_size=8, time_limit_s=5),
    "b": ModelSpec(name="b", engine="x:Y", max_batch_size=8),
}


class Pool:
    """Records the calls; the test says what becomes of them."""

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas
        self.calls: list[SimpleNamespace] = []
        self.held: list[SimpleNamespace] = []
        self.closing = False
        self.ended: list[int] = []
        self.dead: list[int] = []

    def find_idle_pids(self) -> list[int]:
        """Child after child, from PID on."""
        busy = {*self.dead, *(call.pid for call in self.calls if not call.over)}
        return [pid for pid in range(PID, PID + self.replicas) if pid not in busy]

    busy_count = 0
    to_load_next: int | None = None
    starting: int | None = None

    def assign_models(self) -> None:
        """Nothing is to be loaded."""

    def load_next_models(self, has_jobs: Callable[[int], bool]) -> None:
        """No child starts, but for the one that a test asks for."""
        self.has_jobs = has_jobs(PID)

    def is_to_load_next(self, pid: int) -> bool:
        return pid == self.to_load_next

    def is_starting(self, pid: int) -> bool:
        return pid == self.starting

    def can_take_another_call(self, pid: int) -> bool:
        return False

    def has_pid(self, pid: int) -> bool:
        return pid not in self.dead

    def send_call(
        self, pid: int, function: Any, arguments: Any, *, done: Any, failed: Any, accepted: Any
    ) -> SimpleNamespace | None:
        if self.closing:
            return None
        call = SimpleNamespace(pid=pid, batch=arguments[0], done=done, failed=failed, accept=accepted, over=False)
        self.calls.append(call)
        self.held.append(call)
        return call

    def is_unanswered(self, call: SimpleNamespace) -> bool:
        return call in self.held

    def end_process(self, pid: int) -> None:
        self.ended.append(pid)

    def finish(self, call: SimpleNamespace, errors: dict[UUID, str] | None = None, **report: Any) -> None:
        call.over = True
        codes = dict.fromkeys(call.batch.job_ids, "") | (errors or {})
        values = {"engine_s": 0.01, "size": len(codes), "length": 10, "calls": 1, **report}
        call.done(BatchReport(errors=codes, **values))

    def lose(self, call: SimpleNamespace, cause: Exception | None = None) -> None:
        call.over = True
        call.failed(cause or ProcessLost(-signal.SIGKILL))


class Request:
    def __init__(self) -> None:
        self.events: list[Any] = []
        self.note_job_end: Callable[[str, float], None] = lambda error, runtime: self.events.append(("finished", error))

    def report_started(self, pid: int) -> None:
        self.events.append("started")

    def give_back_message(self) -> None:
        self.events.append("given back")

    def remove_from_running_tasks(self) -> None:
        """Tell nobody: Celery does not know of this one."""


def stop_clock(test: TestCase) -> None:
    """A pause lasts for as long as the test wants it to."""
    now = time.monotonic()  # as other threads have it
    test.enterContext(patch("time.monotonic", return_value=now))


def an_item(**values: Any) -> Item:
    return Item(**{"id": str(uuid4()), "group": "", "size": 1, "length": 10, "priority": 2, **values})


def make_dispatcher(replicas: ReplicaRegistry, pool: Any, housekeeping: Any = None) -> Dispatcher:
    residency, unfetched = ResidencyController(replicas), UnfetchedJobFinder(uuid4())
    return Dispatcher(Backlog(replicas), cast("ReplicaPool", pool), residency, unfetched, housekeeping or Mock())


class DispatcherCase(TestCase):
    def setUp(self) -> None:
        stop_clock(self)
        self.pool = Pool(replicas=1)
        plan = Plan(worker=uuid4(), devices=("cpu",), replicas=1, threads=1)
        self.replicas = ReplicaRegistry(plan, CATALOG)
        self.replicas.note_start(0, PID)
        self.load(a=READY, b=READY)
        self.rows_left: list[frozenset[UUID]] = []  # the batches whose rows go back
        housekeeping = Mock(requeue_batch_jobs_soon=self.rows_left.append)
        self.dispatcher = make_dispatcher(self.replicas, self.pool, housekeeping)
        self.clock = 1760000000.0

    def load(self, pid: int = PID, **models: str) -> None:
        states = {CATALOG[name].digest: state for name, state in models.items()}
        self.replicas.note_loaded_models(LoadReport(pid=pid, models=states))

    def grow(self, replicas: int = 2, **models: str) -> None:
        """Start replicas until there are so many, which load these models, or all."""
        for index in range(self.pool.replicas, replicas):
            self.replicas.replicas.append(ReplicaState("cpu"))
            self.replicas.note_start(index, PID + index)
            self.load(PID + index, **(models or dict.fromkeys(CATALOG, READY)))
        self.pool.replicas = replicas

    def add(self, model: str = "a", **values: Any) -> tuple[UUID, Request]:
        self.clock += 0.001
        job_id, request = uuid4(), Request()
        item = {"group": "", "size": 1, "length": 10, "priority": 2, "arrived_at_s": self.clock, **values}
        self.dispatcher.backlog.hold_job(Item(id=str(job_id), **item), model, request)
        return job_id, request

    def fill(self, count: int) -> list[tuple[UUID, Request]]:
        """Hold `count` jobs behind a batch that occupies the only replica, then free it: they form one batch."""
        self.add()
        self.dispatcher.send_next_calls()
        jobs = [self.add() for _ in range(count)]
        self.pool.finish(self.pool.calls[-1])
        return jobs

    @property
    def last(self) -> SimpleNamespace:
        return self.pool.calls[-1]

    def due_in_s(self) -> float:
        due_in_s = self.dispatcher.backlog.find_next_due_in_s()
        assert due_in_s is not None
        return due_in_s

    def now(self) -> None:
        """What is to run again later may run now."""
        for part in self.dispatcher.backlog.isolation.parts:
            part.not_before = 0.0


class DispatcherTests(DispatcherCase):
    def test_an_idle_replica_gets_the_first_job_at_once(self) -> None:
        job_id, _ = self.add()
        self.dispatcher.send_next_calls()
        self.assertEqual(self.last.batch.job_ids, (job_id,))

    def test_after_a_call_that_did_not_fit_batches_are_half_as_large(self) -> None:
        self.fill(24)
        self.assertEqual(len(self.last.batch.job_ids), 8)
        self.pool.finish(self.last, oom_shape=(8, 10.0))
        self.assertEqual(len(self.last.batch.job_ids), 4)

    def test_what_is_done_around_a_call_is_learnt_with_how_many_jobs_it_had(self) -> None:
        self.fill(8)
        with patch.object(self.dispatcher.backlog.queues["a"].costs, "learn_overhead") as observed:
            self.pool.finish(self.last, overhead_s=0.01, jobs=8)
        observed.assert_called_once_with(0.01, jobs=8)

    def test_jobs_gather_while_the_replica_is_busy(self) -> None:
        jobs = self.fill(5)
        self.assertEqual(set(self.last.batch.job_ids), {job_id for job_id, _ in jobs})

    def test_a_message_is_acknowledged_after_its_outcome_was_recorded(self) -> None:
        _, request = self.add()
        self.dispatcher.send_next_calls()
        self.last.accept(1234)
        self.assertEqual(request.events, ["started"])
        self.pool.finish(self.last)
        self.assertEqual(request.events, ["started", ("finished", "")])
        self.assertEqual(self.dispatcher.backlog.held, {})

    def test_the_error_of_one_job_is_its_own(self) -> None:
        (bad, bad_request), (_, good_request) = self.fill(2)
        self.pool.finish(self.last, {bad: "engine_error"})
        self.assertEqual(bad_request.events, [("finished", "engine_error")])
        self.assertEqual(good_request.events, [("finished", "")])

    def test_a_doubled_message_runs_once_and_both_are_acknowledged(self) -> None:
        job_id, first = self.add()
        second = Request()
        item = self.dispatcher.backlog.held[str(job_id)].item
        self.dispatcher.backlog.hold_job(item, "a", second)
        self.dispatcher.send_next_calls()
        third = Request()
        self.dispatcher.backlog.hold_job(item, "a", third)
        self.pool.finish(self.last)
        self.assertEqual(len(self.pool.calls), 1)
        for request in (first, second, third):
            self.assertEqual(request.events[-1], ("finished", ""))

    def test_a_job_that_is_to_run_alone_waits_for_what_runs_and_holds_up_what_waits(self) -> None:
        self.grow(3)
        self.add()
        self.dispatcher.send_next_calls()
        job_id, request = self.add(alone=True)
        self.add()
        self.dispatcher.send_next_calls()
        self.assertEqual(len(self.pool.calls), 1)
        self.pool.finish(self.last)
        self.assertEqual((self.last.batch.job_ids, self.last.batch.alone), ((job_id,), True))
        self.dispatcher.send_next_calls()
        self.assertEqual(len(self.pool.calls), 2)
        self.pool.finish(self.last)
        self.assertEqual((len(self.pool.calls), self.last.batch.alone), (3, False))
        self.assertEqual(request.events, [("finished", "")])

    def test_each_replica_is_given_batches_of_the_models_that_it_has(self) -> None:
        self.grow(b=READY, a="no weights")
        second = PID + 1
        jobs = [self.add("a")[0] for _ in range(9)] + [self.add("b")[0]]
        self.dispatcher.send_next_calls()
        self.assertEqual([(call.pid, call.batch.model) for call in self.pool.calls], [(PID, "a"), (second, "b")])
        self.pool.finish(self.last)
        self.dispatcher.send_next_calls()
        self.assertEqual(len(self.pool.calls), 2)  # the other has what waits
        self.pool.finish(self.pool.calls[0])
        self.assertEqual((self.last.pid, self.last.batch.job_ids), (PID, (jobs[8],)))

    def test_what_another_replica_has_keeps_no_priority_from_its_share(self) -> None:
        self.load(a=READY, b="no weights")
        self.grow(b=READY, a="no weights")
        self.add("b", priority=2)
        self.dispatcher.send_next_calls()
        self.add("b", priority=2)
        low, _ = self.add("a", priority=3)
        for number in range(2 * ONE_IN):
            self.add("a", priority=1, group=str(number))
            self.dispatcher.send_next_calls()
            for _ in range(8):
                self.add("a", priority=1)
            self.pool.finish(next(call for call in self.pool.calls[::-1] if call.pid == PID))
        self.assertIn(low, [job_id for call in self.pool.calls for job_id in call.batch.job_ids])

    def test_a_job_that_is_to_run_alone_does_so_in_a_replica_that_has_its_model(self) -> None:
        self.grow(b=READY, a="no weights")
        self.pool.dead = [PID]
        job_id, _ = self.add(alone=True)
        self.add("b", arrived_at_s=self.clock + 1.0)
        self.dispatcher.send_next_calls()
        self.assertEqual(self.pool.calls, [])
        self.replicas.try_at = 0.0
        self.replicas.replicas[0].is_loading = True  # which may last: it is not waited for
        self.dispatcher.send_next_calls()
        self.assertEqual((self.last.pid, self.last.batch.model), (PID + 1, "b"))
        self.pool.finish(self.last)
        self.load(a=READY, b=READY)
        self.pool.dead = []
        self.dispatcher.send_next_calls()
        self.assertEqual((self.last.pid, self.last.batch.job_ids, self.last.batch.alone), (PID, (job_id,), True))

    def test_a_job_that_is_to_run_alone_does_so_too_when_its_claim_met_a_database_that_was_away(self) -> None:
        self.grow(3)
        job_id, _ = self.add(alone=True)
        self.dispatcher.send_next_calls()
        self.pool.lose(self.last, StoreUnavailable("database away"))
        self.add(priority=3)
        self.dispatcher.send_next_calls()
        beside = self.last
        self.now()
        self.add(priority=3)
        self.dispatcher.send_next_calls()
        self.assertIs(self.last, beside)
        self.pool.finish(beside)
        self.assertEqual((self.last.batch.job_ids, self.last.batch.alone), ((job_id,), True))
        self.dispatcher.send_next_calls()
        self.assertEqual(len(self.pool.calls), 3)

    def test_a_clock_that_is_set_back_holds_up_nothing_that_waits_for_company(self) -> None:
        queue = self.dispatcher.backlog.queues["a"]
        queue.set_limits(replace(queue.limits, max_wait_s=3600))
        self.add(arrived_at_s=clock.estimate_now_s())
        self.dispatcher.send_next_calls()
        self.assertEqual(self.pool.calls, [])
        self.assertLessEqual(self.due_in_s(), 3600)
        with patch.object(clock, "_off_s", -3600.0):
            self.assertLessEqual(self.due_in_s(), 3600)
            self.dispatcher.send_next_calls()
        self.assertEqual(len(self.pool.calls), 1)

    def test_a_clock_that_is_set_back_holds_up_nothing_that_is_to_run_again(self) -> None:
        self.add()
        self.dispatcher.send_next_calls()
        self.pool.lose(self.last, StoreUnavailable("database away"))
        with patch.object(clock, "_off_s", -3600.0):
            self.assertLess(self.dispatcher.backlog.find_next_due_in_s() or math.inf, 2 * LONGEST_RETRY_S)
            self.now()
            self.dispatcher.send_next_calls()
        self.assertEqual(len(self.pool.calls), 2)

    def test_a_job_that_is_to_run_alone_does_so_too_when_the_pool_dropped_its_call(self) -> None:
        self.grow(3)
        job_id, _ = self.add(alone=True)
        self.dispatcher.send_next_calls()
        self.last.over = True
        self.pool.held.clear()
        self.dispatcher.scheduler.may_begin = False
        self.dispatcher.end_stuck_and_expired()
        self.dispatcher.scheduler.may_begin = True
        self.add("b", priority=1)
        self.dispatcher.send_next_calls()
        self.assertEqual((len(self.pool.calls), self.last.batch.model), (2, "b"))
        self.pool.finish(self.last)
        self.assertEqual((self.last.batch.job_ids, self.last.batch.alone), ((job_id,), True))

    def test_a_job_of_a_higher_priority_goes_before_those_that_run_alone(self) -> None:
        low = [self.add(alone=True, priority=3)[0] for _ in range(3)]
        high, _ = self.add("b", priority=1)
        self.dispatcher.send_next_calls()
        self.assertEqual(self.last.batch.job_ids, (high,))
        self.pool.finish(self.last)
        self.assertEqual(self.last.batch.job_ids, (low[0],))

    def test_after_a_job_that_ran_alone_others_have_as_long_a_turn(self) -> None:
        self.grow()
        first, second = (self.add(alone=True)[0] for _ in range(2))
        self.dispatcher.send_next_calls()
        self.assertEqual(self.last.batch.job_ids, (first,))
        self.last.accept(PID)
        self.dispatcher.batches[self.last.batch.batch].begun_at -= 60
        beside, _ = self.add("a")
        self.pool.finish(self.last)
        self.assertEqual(self.last.batch.job_ids, (beside,))
        later, _ = self.add("b")
        self.pool.finish(self.last)
        self.assertEqual(self.last.batch.job_ids, (later,))
        self.pool.finish(self.last)
        self.assertEqual(len(self.pool.calls), 3)
        self.dispatcher.backlog.isolation.others_until = 0.0
        self.dispatcher.end_stuck_and_expired()
        self.assertEqual(self.last.batch.job_ids, (second,))

    def test_where_nothing_else_waits_those_that_run_alone_follow_each_other(self) -> None:
        for _ in range(3):
            self.add(alone=True)
        self.dispatcher.send_next_calls()
        for _ in range(2):
            self.last.accept(PID)
            self.dispatcher.batches[self.last.batch.batch].accepted_at -= 60
            self.pool.finish(self.last)
        self.assertEqual(len(self.pool.calls), 3)

    def test_one_that_died_alone_is_tried_again_at_once_and_alone(self) -> None:
        self.grow()
        job_id, _ = self.add(alone=True, priority=3)
        self.dispatcher.send_next_calls()
        self.add(priority=1)
        self.pool.lose(self.last)
        self.assertEqual((self.last.batch.job_ids, self.last.batch.alone), ((job_id,), True))

    def test_what_a_later_message_wants_alone_leaves_its_queue(self) -> None:
        self.add()
        self.dispatcher.send_next_calls()
        job_id, _ = self.add()
        self.dispatcher.backlog.hold_job(
            self.dispatcher.backlog.held[str(job_id)].item._replace(alone=True), "a", Request()
        )
        self.pool.finish(self.last)
        self.assertEqual((self.last.batch.job_ids, self.last.batch.alone), ((job_id,), True))

    def test_one_batch_holds_one_model(self) -> None:
        self.add("a")
        self.dispatcher.send_next_calls()
        self.add("b")
        self.add("a")
        self.pool.finish(self.last)
        self.assertEqual(self.last.batch.model, "b")
        self.pool.finish(self.last)
        self.assertEqual(self.last.batch.model, "a")

    def test_half_of_a_lost_batch_is_run_again_and_takes_its_claim_over(self) -> None:
        self.fill(8)
        lost = self.last
        self.pool.lose(lost)
        half = self.last
        self.assertEqual((len(half.batch.job_ids), half.batch.takes_over), (4, (lost.batch.batch,)))

    def test_what_a_run_did_not_come_to_claim_is_taken_over_from_the_one_before(self) -> None:
        self.fill(1)
        over = [self.last.batch.batch]
        self.pool.lose(self.last)
        for cause in (StoreUnavailable("database away"), ProcessLost(-signal.SIGKILL)):
            self.assertEqual(set(self.last.batch.takes_over), set(over))
            over.append(self.last.batch.batch)
            self.pool.lose(self.last, cause)
            self.now()
            self.dispatcher.send_next_calls()
        self.assertEqual(set(self.last.batch.takes_over), set(over))

    def test_what_a_claim_names_has_a_bound(self) -> None:
        self.fill(1)
        for _ in range(2 * MOST_OVER):
            self.pool.lose(self.last, StoreUnavailable("database away"))
            self.now()
            self.dispatcher.send_next_calls()
        self.assertEqual(len(self.last.batch.takes_over), MOST_OVER)

    def settle(self, poison: UUID) -> int:
        """Run until nothing is left; `poison` kills its process. How many calls ran an engine."""
        runs = 0
        while not self.last.over:
            call = self.last
            runs += not call.batch.verdict
            if call.batch.verdict:
                self.pool.finish(call, {poison: call.batch.verdict})
            elif poison in call.batch.job_ids:
                self.pool.lose(call)
            else:
                self.pool.finish(call)
        return runs

    def test_one_poison_job_of_a_batch_fails_alone_and_costs_few_calls(self) -> None:
        for size in range(2, 9):
            for place in range(size):
                with self.subTest(size=size, place=place):
                    self.setUp()
                    jobs = self.fill(size)
                    poison, poison_request = jobs[place]
                    beyond_the_first = self.settle(poison) - 1
                    self.assertLessEqual(beyond_the_first, math.ceil(math.log2(size)) + 3)
                    self.assertEqual(poison_request.events, [("finished", "crashed")])
                    others = [request.events for job_id, request in jobs if job_id != poison]
                    self.assertEqual(others, [[("finished", "")]] * (size - 1))
                    self.assertEqual((self.dispatcher.backlog.held, len(self.dispatcher.backlog.isolation)), ({}, 0))

    def test_two_poison_jobs_of_a_batch_fail_and_the_others_succeed(self) -> None:
        jobs = self.fill(8)
        poison = {jobs[1][0], jobs[6][0]}
        while not self.last.over:
            call = self.last
            culprits = poison & set(call.batch.job_ids)
            if call.batch.verdict:
                self.pool.finish(call, dict.fromkeys(culprits, call.batch.verdict))
            elif culprits:
                self.pool.lose(call)
            else:
                self.pool.finish(call)
        for job_id, request in jobs:
            self.assertEqual(request.events, [("finished", "crashed" if job_id in poison else "")])

    def test_a_device_that_fails_during_a_search_leaves_no_job_behind(self) -> None:
        self.fill(8)
        self.pool.lose(self.last)
        self.pool.lose(self.last, DeviceFailed("CUDA error: device-side assert triggered"))
        while not self.last.over:
            self.pool.finish(self.last)
        self.assertEqual(self.dispatcher.backlog.held, {})

    def test_a_search_goes_on_after_a_step_that_failed_through_no_fault_of_its_jobs(self) -> None:
        jobs = self.fill(4)
        poison, request = jobs[3]
        self.pool.lose(self.last)
        self.pool.lose(self.last, StoreUnavailable("database away"))
        self.now()
        self.dispatcher.send_next_calls()
        self.settle(poison)
        self.assertEqual(request.events, [("finished", "crashed")])
        self.assertEqual(self.dispatcher.backlog.held, {})

    def test_a_lone_job_gets_one_more_try_if_its_child_was_killed(self) -> None:
        job_id, request = self.add()
        self.dispatcher.send_next_calls()
        self.pool.lose(self.last)
        self.assertEqual((self.last.batch.job_ids, self.last.batch.verdict), ((job_id,), ""))
        self.pool.finish(self.last)
        self.assertEqual(request.events, [("finished", "")])

    def test_a_lone_job_fails_if_its_engine_ran_past_the_limit_twice(self) -> None:
        job_id, _ = self.add()
        self.dispatcher.send_next_calls()
        for verdict in ("", errors.TimedOut.code):
            self.pool.lose(self.last, PAST_LIMIT)
            self.assertEqual((self.last.batch.job_ids, self.last.batch.verdict), ((job_id,), verdict))

    def later(self, seconds: float) -> None:
        self.enterContext(patch("time.monotonic", return_value=time.monotonic() + seconds))

    def lose_after_pause(self, pause_s: float, call: SimpleNamespace) -> None:
        """The worker is stopped for so long, and its child hears of its own limit first as both go on."""
        call.accept(PID)
        self.dispatcher.end_stuck_and_expired()
        self.later(pause_s)
        self.pool.lose(call, PAST_LIMIT)

    def test_nobody_is_blamed_for_the_time_in_which_the_worker_was_stopped(self) -> None:
        self.fill(4)
        jobs = self.last.batch.job_ids
        for _ in range(MOST_SUSPENSIONS):
            with self.assertLogs("inference.worker", "WARNING"):
                self.lose_after_pause(CATALOG["a"].time_limit_s, self.last)
            self.assertEqual((self.last.batch.job_ids, self.last.batch.verdict), (jobs, ""))
        held = [held for batch in self.dispatcher.batches.values() for held in batch.jobs]
        self.assertEqual([each.crashes_alone for each in held], [0] * 4)

    def test_a_worker_that_is_stopped_again_and_again_does_not_keep_a_job_for_ever(self) -> None:
        self.add()
        self.dispatcher.send_next_calls()
        tries = 0
        while not self.last.batch.verdict:
            self.lose_after_pause(CATALOG["a"].time_limit_s, self.last)
            tries += 1
        self.assertEqual((self.last.batch.verdict, tries), (errors.TimedOut.code, MOST_SUSPENSIONS + CRASHES_ALONE))

    def test_a_short_pause_excuses_no_job(self) -> None:
        self.add()
        self.dispatcher.send_next_calls()
        for _ in range(CRASHES_ALONE):
            self.lose_after_pause(SUSPENDED * CATALOG["a"].time_limit_s / 2, self.last)
        self.assertEqual(self.last.batch.verdict, errors.TimedOut.code)

    def test_a_worker_that_leaves_and_turns_its_event_loop_no_more_reports_no_pause(self) -> None:
        self.add()
        self.dispatcher.send_next_calls()
        self.dispatcher.drain()
        self.later(CATALOG["a"].time_limit_s)
        with self.assertNoLogs("inference.worker.dispatcher", "WARNING"):
            self.pool.finish(self.last)

    def test_no_child_is_stuck_for_the_time_in_which_the_worker_was_stopped(self) -> None:
        self.add()
        self.dispatcher.send_next_calls()
        self.last.accept(PID)
        with patch("os.kill", Mock()) as kill:
            self.dispatcher.end_stuck_and_expired()
            self.later(CATALOG["a"].time_limit_s + STUCK_S + 1)
            self.dispatcher.end_stuck_and_expired()
            kill.assert_not_called()

    def test_jobs_that_wait_keep_a_child_from_its_next_load(self) -> None:
        self.dispatcher.send_next_calls()
        self.assertFalse(self.pool.has_jobs)
        self.add()
        self.dispatcher.send_next_calls()
        self.assertFalse(self.pool.has_jobs)  # it runs
        self.add("b")
        self.dispatcher.send_next_calls()
        self.assertTrue(self.pool.has_jobs)

    def test_a_call_that_was_sent_as_its_child_began_to_load_waits_for_the_load(self) -> None:
        self.add()
        self.dispatcher.send_next_calls()
        (batch,) = self.dispatcher.batches.values()
        batch.accepted_at -= CATALOG["a"].time_limit_s + STUCK_S + 1
        self.pool.starting = PID
        with patch("os.kill") as kill:
            self.dispatcher.end_stuck_and_expired()
            self.pool.starting = None  # the call has its whole time from here on
            self.dispatcher.end_stuck_and_expired()
        kill.assert_not_called()

    def test_a_child_that_is_stuck_outside_its_engine_is_killed_and_its_job_tried_again(self) -> None:
        child = subprocess.Popen(["sleep", f"{PATIENCE_S:g}"])
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        self.add()
        self.dispatcher.send_next_calls()
        self.last.accept(child.pid)
        next(iter(self.dispatcher.batches.values())).accepted_at -= CATALOG["a"].time_limit_s + STUCK_S + 1
        self.dispatcher.end_stuck_and_expired(STUCK_S - 1)  # the child may still wait for the database
        self.assertIsNone(child.poll())
        self.dispatcher.end_stuck_and_expired(STUCK_S + 1)
        self.assertEqual(child.wait(), -signal.SIGUSR2)  # which a child answers with its stack
        self.pool.lose(self.last)
        self.now()
        self.dispatcher.send_next_calls()
        self.assertEqual(self.last.batch.verdict, "")

    def test_so_is_one_that_never_begins_its_call_which_then_runs_elsewhere(self) -> None:
        job_id, _ = self.add()
        self.dispatcher.send_next_calls()
        batch = next(iter(self.dispatcher.batches.values()))
        with patch("os.kill", Mock()) as kill:
            self.dispatcher.end_stuck_and_expired()
            kill.assert_not_called()
            batch.accepted_at -= CATALOG["a"].time_limit_s + STUCK_S + KILL_GRACE_S + 1
            for _ in range(2):
                self.dispatcher.end_stuck_and_expired()
            self.assertEqual(
                [call.args for call in kill.call_args_list], [(PID, signal.SIGUSR2), (PID, signal.SIGKILL)]
            )
            self.last.over = True
            self.pool.held.clear()
            self.dispatcher.end_stuck_and_expired()
        self.assertEqual((len(self.pool.calls), self.last.batch.job_ids, self.last.batch.verdict), (2, (job_id,), ""))

    def test_a_child_that_does_not_end_when_it_is_killed_is_given_up_and_its_jobs_run_elsewhere(self) -> None:
        jobs = self.fill(2)
        batch = next(iter(self.dispatcher.batches.values()))
        self.last.accept(PID)
        stuck = self.last
        batch.accepted_at -= CATALOG["a"].time_limit_s + STUCK_S + KILL_GRACE_S + 1
        with (
            patch("inference.worker.dispatcher.os.kill") as kill,
            self.assertLogs("inference.worker.dispatcher", "ERROR"),
        ):
            self.dispatcher.end_stuck_and_expired()
            self.dispatcher.end_stuck_and_expired()
            batch.killed_at -= GIVE_UP_S + 1
            self.dispatcher.end_stuck_and_expired()
        self.assertEqual([call.args for call in kill.call_args_list], [(PID, signal.SIGUSR2), (PID, signal.SIGKILL)])
        self.assertEqual(
            (self.dispatcher.batches, self.replicas.unpaused_models, self.replicas.served_models),
            ({}, set(), set()),
        )
        self.assertIn("cannot be ended", self.dispatcher.make_snapshot().error)
        self.replicas.note_start(0, PID)
        self.load(a=READY, b=READY)
        stuck.over = True
        self.dispatcher.send_next_calls()
        self.assertEqual(len(self.last.batch.job_ids), 2)
        self.assertEqual(self.last.batch.takes_over, (stuck.batch.batch,))
        self.pool.lose(stuck)  # it ends at last
        self.pool.finish(self.last)
        self.assertEqual([request.events[-1] for _, request in jobs], [("finished", "")] * 2)

    def test_jobs_are_not_blamed_for_a_child_that_waited_for_the_database_and_the_pauses_grow(self) -> None:
        jobs = self.fill(4)
        pauses = []
        for _ in range(8):
            next(iter(self.dispatcher.batches.values())).stuck = True
            self.pool.lose(self.last)
            pauses.append(self.due_in_s())
            self.now()
            self.dispatcher.send_next_calls()
            self.assertEqual((len(self.last.batch.job_ids), self.last.batch.verdict), (4, ""))
        self.assertLess(2 * pauses[0], pauses[3])
        self.assertLessEqual(max(pauses), LONGEST_STUCK_S)
        self.pool.finish(self.last)
        self.assertEqual([request.events for _, request in jobs], [[("finished", "")]] * 4)

    def test_after_a_device_failure_the_process_is_given_no_other_call(self) -> None:
        self.fill(8)
        self.last.accept(PID)
        self.pool.lose(self.last, DeviceFailed("CUDA error: unspecified launch failure"))
        self.assertEqual(self.pool.ended, [PID])

    def test_eight_inputs_that_break_the_device_fail_one_by_one_and_the_ninth_is_run(self) -> None:
        jobs = self.fill(8)
        poison = {job_id for job_id, _ in jobs}
        _, request = self.add("b")
        while not self.last.over:
            call = self.last
            culprits = poison & set(call.batch.job_ids)
            if call.batch.verdict or not culprits:
                self.pool.finish(call, dict.fromkeys(culprits, call.batch.verdict))
            else:
                self.pool.lose(call, DeviceFailed("CUDA error: device-side assert triggered"))
        self.assertEqual([r.events for _, r in jobs], [[("finished", DeviceFailed.code)]] * 8)
        self.assertEqual(request.events, [("finished", "")])

    def test_an_input_that_breaks_the_device_fails_alone(self) -> None:
        (bad, _), *_ = self.fill(2)
        while self.last.batch.job_ids != (bad,) or not self.last.batch.verdict:
            if bad in self.last.batch.job_ids:
                self.pool.lose(self.last, DeviceFailed("CUDA error: device-side assert triggered"))
            else:
                self.pool.finish(self.last)
        self.assertEqual(self.last.batch.verdict, DeviceFailed.code)

    def run_out(self, *causes: Exception, limit: int = 100) -> int:
        """Lose every call until none is sent any more; how many were."""
        for number in range(limit):
            if self.last.over:
                return number
            self.pool.lose(self.last, causes[number % len(causes)])
            self.now()
            self.dispatcher.send_next_calls()
        raise AssertionError(f"still runs after {limit} calls")

    def test_a_batch_that_fails_again_and_again_ends(self) -> None:
        jobs = self.fill(8)
        self.run_out(RuntimeError("nobody foresaw this"))
        self.assertEqual([request.events for _, request in jobs], [[("finished", "")]] * 8)
        self.assertEqual((self.dispatcher.backlog.held, len(self.dispatcher.backlog.isolation)), ({}, 0))

    def test_one_job_of_a_batch_that_fails_for_a_bug_fails_alone(self) -> None:
        jobs = self.fill(8)
        bad, bad_request = jobs[5]
        for _ in range(30):
            if self.last.over:
                break
            if self.last.batch.verdict:
                self.assertEqual((self.last.batch.raised, self.last.batch.trace), ("a secret", "here"))
                self.pool.finish(self.last, {bad: self.last.batch.verdict})
            elif bad in self.last.batch.job_ids:
                self.pool.lose(self.last, RemoteError("nobody foresaw this", "a secret", "here"))
            else:
                self.pool.finish(self.last)
            self.now()
            self.dispatcher.send_next_calls()
        self.assertEqual(bad_request.events, [("finished", "failed")])
        for job_id, request in jobs:
            self.assertEqual(request.events, [("finished", "failed" if job_id == bad else "")])

    def test_what_cannot_be_settled_ends(self) -> None:
        _, request = self.add()
        request.note_job_end = Mock(side_effect=ZeroDivisionError)
        self.dispatcher.send_next_calls()
        for _ in range(10):
            if not self.last.over:
                self.pool.finish(self.last)
                self.now()
                self.dispatcher.send_next_calls()
        self.assertEqual((self.dispatcher.backlog.held, len(self.dispatcher.backlog.isolation)), ({}, 0))

    def test_the_pauses_grow_while_the_database_is_away_and_nobody_is_blamed(self) -> None:
        job_id, request = self.add()
        self.dispatcher.send_next_calls()
        pauses = []
        for _ in range(6):
            self.pool.lose(self.last, StoreUnavailable("database away"))
            pauses.append(self.due_in_s())
            self.now()
            self.dispatcher.send_next_calls()
        self.assertLess(2 * pauses[0], pauses[2])  # of 1, 2, 4, each a fifth more or less
        self.assertLessEqual(max(pauses), LONGEST_RETRY_S * 1.2)
        self.assertEqual((self.last.batch.job_ids, self.last.batch.verdict, request.events), ((job_id,), "", []))

    def test_a_failure_that_is_not_the_jobs_own_sends_them_again_later(self) -> None:
        job_id, request = self.add()
        self.dispatcher.send_next_calls()
        self.pool.lose(self.last, StoreUnavailable("database away"))
        self.assertEqual(len(self.pool.calls), 1)
        self.assertGreater(self.due_in_s(), 0)
        self.now()
        self.dispatcher.end_stuck_and_expired()
        self.assertEqual(self.last.batch.job_ids, (job_id,))
        self.assertEqual(request.events, [])

    def test_after_a_reconnect_waiting_jobs_are_forgotten_and_running_ones_kept(self) -> None:
        running, old_request = self.add()
        self.dispatcher.send_next_calls()
        self.add()
        self.dispatcher.forget_messages()
        self.assertEqual(set(self.dispatcher.backlog.held), {str(running)})
        new_request = Request()
        self.dispatcher.backlog.hold_job(self.dispatcher.backlog.held[str(running)].item, "a", new_request)
        self.pool.finish(self.last)
        self.assertEqual((old_request.events, new_request.events), ([], [("finished", "")]))

    def test_a_call_that_the_pool_dropped_is_sent_again(self) -> None:
        job_id, _ = self.add()
        self.dispatcher.send_next_calls()
        dropped = self.last
        dropped.over = True
        self.pool.held.clear()
        self.dispatcher.end_stuck_and_expired()
        self.assertIsNot(self.last, dropped)
        self.assertEqual(self.last.batch.job_ids, (job_id,))

    def test_a_closing_pool_leaves_the_messages_to_the_broker(self) -> None:
        self.pool.closing = True
        _, request = self.add()
        self.dispatcher.send_next_calls()
        self.assertFalse(self.dispatcher.scheduler.may_begin)
        self.assertEqual(request.events, [])

    def test_a_worker_that_leaves_gives_back_what_no_child_has_begun(self) -> None:
        _, running = self.add()
        self.dispatcher.send_next_calls()
        self.grow()
        _, sent = self.add()
        self.dispatcher.send_next_calls()
        self.pool.held.remove(self.last)
        _, waiting = self.add()
        self.dispatcher.drain()
        self.dispatcher.send_next_calls()
        self.assertEqual([r.events for r in (running, sent, waiting)], [[], ["given back"], ["given back"]])
        self.assertEqual(len(self.pool.calls), 2)
        self.pool.finish(self.pool.calls[0])
        self.assertEqual(running.events, [("finished", "")])

    def test_messages_of_a_model_that_no_replica_has_go_back(self) -> None:
        self.add("b")
        self.dispatcher.send_next_calls()
        _, request = self.add("a")
        self.load(a="no weights", b=READY)
        self.dispatcher.give_back_unrunnable_jobs()
        self.assertEqual(request.events, ["given back"])
        self.assertEqual(len(self.dispatcher.backlog.queues["a"]), 0)

    def crash(self, count: int) -> tuple[list[tuple[UUID, Request]], list[frozenset[UUID]]]:
        """A batch that has died with its only replica; and the rows that are given back."""
        jobs = self.fill(count)
        self.replicas.note_end(0)
        self.pool.lose(self.last)
        return jobs, self.rows_left

    def test_a_search_waits_for_a_replica_that_starts_again(self) -> None:
        jobs, rows = self.crash(4)
        batches = len(self.pool.calls)
        self.dispatcher.send_next_calls()
        self.assertEqual(
            (len(self.pool.calls), self.dispatcher.backlog.find_next_due_in_s(), rows), (batches, None, [])
        )
        self.replicas.note_start(0, PID)
        self.load(a=READY, b=READY)
        self.dispatcher.send_next_calls()
        self.settle(jobs[1][0])
        self.assertEqual(jobs[1][1].events, [("finished", "crashed")])

    def test_what_has_run_and_cannot_be_run_again_here_gives_its_rows_back(self) -> None:
        jobs, rows = self.crash(4)
        over = self.last.batch.batch
        self.replicas.note_start(0, PID)
        self.load(a="no weights", b=READY)
        self.dispatcher.give_back_unrunnable_jobs()
        self.assertEqual((rows, self.dispatcher.backlog.held), ([{over}], {}))
        self.assertEqual([request.events for _, request in jobs], [["given back"]] * 4)

    def test_a_search_goes_on_after_a_reconnect(self) -> None:
        jobs = self.fill(4)
        self.pool.lose(self.last)
        half = self.last
        self.dispatcher.forget_messages()
        self.assertEqual(len(self.dispatcher.backlog.held), 4)
        again = Request()
        self.dispatcher.backlog.hold_job(self.dispatcher.backlog.held[str(jobs[3][0])].item, "a", again)
        self.pool.lose(half)
        self.assertTrue(self.last.batch.takes_over)
        self.settle(jobs[0][0])
        self.assertEqual((again.events, self.dispatcher.backlog.held), ([("finished", "")], {}))

    def test_a_call_of_a_search_that_the_pool_dropped_after_a_reconnect_is_sent_again(self) -> None:
        self.fill(4)
        self.pool.lose(self.last)
        dropped = self.last
        self.dispatcher.forget_messages()
        dropped.over = True
        self.pool.held.clear()
        self.dispatcher.end_stuck_and_expired()
        self.assertEqual(self.last.batch.job_ids, dropped.batch.job_ids)

    def test_a_child_that_has_not_loaded_the_model_touches_nothing_and_the_job_is_not_blamed(self) -> None:
        job_id, request = self.add()
        self.dispatcher.send_next_calls()
        self.pool.lose(self.last, ModelUnavailable("a is not loaded"))
        held = self.dispatcher.backlog.held[str(job_id)]
        self.assertEqual((held.takes_over, held.crashes_alone, request.events), ((), 0, []))

    def test_a_job_that_died_alone_once_and_among_others_twice_is_tried_once_more(self) -> None:
        jobs = self.fill(4)
        for _ in range(3):
            self.pool.lose(self.last)
        self.assertEqual((self.last.batch.job_ids, self.last.batch.verdict), ((jobs[0][0],), ""))

    def test_expired_jobs_leave_before_the_call(self) -> None:
        self.add("b")
        self.dispatcher.send_next_calls()
        _, request = self.add("a", expires_at_s=self.clock)
        self.dispatcher.end_stuck_and_expired()
        self.assertEqual(request.events, [("finished", "expired")])

    def test_no_job_leaves_as_expired_as_the_host_s_clock_is_set_before_that_is_measured(self) -> None:
        real, now_s = time.time, time.monotonic()
        with patch.multiple(clock, _off_s=0.0, _measured_at=now_s, _begun_s=real() - now_s):
            _, request = self.add("a", expires_at_s=real() + 600.0)
            with patch.object(time, "time", lambda: real() + 3600.0):
                self.assertFalse(self.dispatcher.backlog.drop_expired())
            clock.measure_offset(Mock(vendor="sqlite"))
            self.assertFalse(self.dispatcher.backlog.drop_expired())
        self.assertEqual(request.events, [])

    def test_nothing_runs_beside_what_runs_alone_as_the_host_s_clock_is_set_before_that_is_measured(self) -> None:
        self.grow()
        real, now_s = time.time, time.monotonic()
        queue = self.dispatcher.backlog.queues["b"]
        queue.set_limits(replace(queue.limits, max_wait_s=60.0))
        with patch.multiple(clock, _off_s=0.0, _measured_at=now_s, _begun_s=real() - now_s):
            self.add(arrived_at_s=real())
            self.dispatcher.send_next_calls()
            self.add(alone=True, arrived_at_s=real())
            self.add("b", priority=1, arrived_at_s=real())  # waits for company
            with patch.object(time, "time", lambda: real() + 3600.0):
                self.dispatcher.send_next_calls()
        self.assertEqual([call.batch.alone for call in self.pool.calls], [False])

    def test_a_model_with_expired_jobs_does_not_hold_up_another(self) -> None:
        self.add("a", expires_at_s=self.clock)
        job_id, _ = self.add("b")
        self.dispatcher.send_next_calls()
        self.assertEqual(self.last.batch.job_ids, (job_id,))

    def test_the_snapshot_shows_what_waits_and_how_far_the_model_has_come(self) -> None:
        self.fill(3)
        self.add()
        snapshot = self.dispatcher.make_snapshot()
        self.assertEqual((snapshot.held, snapshot.finished), (1, 1))
        self.assertLessEqual(snapshot.reached["a"][2], self.clock)

    def test_what_waits_for_its_turn_here_is_not_passed(self) -> None:
        self.add(owner="many", size=32)
        self.dispatcher.send_next_calls()
        self.add(owner="many", size=32)
        oldest = self.clock
        for _ in range(3):
            self.add(owner="many", size=32)
        self.add(owner="few", arrived_at_s=self.clock + 60.0)
        self.pool.finish(self.last)
        self.assertEqual(self.dispatcher.make_snapshot().reached["a"][2], oldest)

    def test_what_runs_without_its_message_shows_nothing_of_how_far_the_queue_has_come(self) -> None:
        self.dispatcher.backlog.hold_job(an_item(arrived_at_s=self.clock + 60.0), "a")
        self.dispatcher.send_next_calls()
        self.assertNotIn(2, self.dispatcher.make_snapshot().reached.get("a", {}))

    def test_after_a_clock_was_set_back_a_model_has_come_as_far_as_its_newest_job(self) -> None:
        self.add(arrived_at_s=clock.estimate_now_s())
        self.dispatcher.send_next_calls()
        self.pool.finish(self.last)
        with patch.object(clock, "_off_s", -3600.0):
            self.add(arrived_at_s=clock.estimate_now_s())
            self.dispatcher.send_next_calls()
            self.assertLessEqual(self.dispatcher.make_snapshot().reached["a"][2], clock.estimate_now_s())

    def test_what_runs_is_not_counted_as_held_while_its_messages_are_acknowledged(self) -> None:
        held = []
        jobs = self.fill(2)
        for _, request in jobs:
            request.note_job_end = lambda error, runtime: held.append(self.dispatcher.make_snapshot().held)
        self.pool.finish(self.pool.calls[-1])
        self.assertEqual(held, [0, 0])


class TurnTests(DispatcherCase):
    """Whose jobs are next."""

    def setUp(self) -> None:
        super().setUp()
        self.add(size=32)
        self.dispatcher.send_next_calls()  # a batch that occupies the only replica

    def following(self) -> tuple[UUID, ...]:
        """Return the jobs of the next batch."""
        self.pool.finish(self.last)
        ids: tuple[UUID, ...] = self.last.batch.job_ids
        return ids

    def test_the_job_of_another_owner_is_before_those_of_one_with_many(self) -> None:
        for _ in range(10):
            self.add(owner="many", size=32)
        self.following()
        few, _ = self.add(owner="few", size=32)
        self.assertEqual(self.following(), (few,))

    def test_so_is_that_of_another_model(self) -> None:
        for _ in range(10):
            self.add(owner="many", size=32)
        self.following()
        few, _ = self.add("b", owner="few", size=32)
        self.assertEqual(self.following(), (few,))

    def test_what_is_not_run_takes_nothing_of_its_owners_share(self) -> None:
        backlog = self.dispatcher.backlog

        def run_nothing(job_id: UUID) -> None:
            self.following()
            self.last.over = True
            self.last.done(BatchReport(errors={}))  # another worker ran it

        ends: tuple[Callable[[UUID], object], ...] = (
            lambda job_id: backlog.drop_ended_job(str(job_id)),
            lambda job_id: backlog.forget_messages(),
            run_nothing,
        )
        for number, end in enumerate(ends):
            with self.subTest(number):
                job_id, _ = self.add(owner="few")
                end(job_id)
                self.assertNotIn(str(job_id), backlog.held)
                few, new = (backlog.held[str(self.add(owner=owner)[0])].item.turn for owner in ("few", "new"))
                self.assertAlmostEqual(few, new)
                backlog.forget_messages()

    def test_one_batch_in_so_many_is_of_a_lower_priority_also_of_another_model(self) -> None:
        low = [self.add(model, priority=3, size=32)[0] for model in ("a", "b")]
        for _ in range(4 * ONE_IN):
            self.add(priority=1, size=32)
        order = [self.following()[0] for _ in range(3 * ONE_IN)]
        self.assertEqual([order.index(job_id) for job_id in low], [ONE_IN - 1, 2 * ONE_IN - 1])

    def test_the_batch_of_a_lower_priority_is_filled_with_its_own(self) -> None:
        for priority in (1, 3):
            for _ in range(2 * ONE_IN * CATALOG["a"].max_batch_size):
                self.add(priority=priority)
        taken = Counter[int]()
        for _ in range(2 * ONE_IN):
            jobs, *_ = self.dispatcher.backlog.take_next_batch(set(), idle=1) or ((),)
            taken.update(held.item.priority for held in jobs)
        self.assertEqual(taken[3], 2 * CATALOG["a"].max_batch_size)

    def test_a_job_without_a_message_runs_and_its_message_that_comes_meanwhile_ends_with_it(self) -> None:
        item, request = an_item(arrived_at_s=self.clock), Request()
        self.dispatcher.backlog.hold_job(item, "a")
        self.assertEqual(self.following(), (UUID(item.id),))
        self.dispatcher.backlog.hold_job(item, "a", request)
        self.pool.finish(self.last)
        self.assertEqual((request.events, self.dispatcher.backlog.held), ([("finished", "")], {}))

    def test_what_has_ended_meanwhile_leaves_the_queue_unless_it_runs(self) -> None:
        (running,) = self.dispatcher.backlog.held
        waiting, request = self.add()
        for job_id in (running, str(waiting), str(uuid4())):
            self.dispatcher.backlog.drop_ended_job(job_id)
        self.assertEqual((list(self.dispatcher.backlog.held), request.events), ([running], [("finished", "")]))

    def test_others_are_looked_for_once_as_many_are_held_as_may_be(self) -> None:
        with patch.object(UnfetchedJobFinder, "request_look") as request_look:
            self.dispatcher.send_next_calls()
            self.assertFalse(request_look.called)
            while len(self.dispatcher.backlog.held) < self.dispatcher.prefetch_count:
                self.add(owner="many")
            self.dispatcher.send_next_calls()
        self.assertTrue(request_look.called)

    def test_what_a_dead_child_may_have_claimed_unheard_is_taken_over_with_or_without_its_message(self) -> None:
        for request in (None, Request()):
            with self.subTest(has_message=bool(request)):
                item = an_item(arrived_at_s=self.clock)
                self.dispatcher.backlog.hold_job(item, "a", request)
                self.following()
                call = self.last
                self.pool.held.remove(call)  # nothing was heard of it, and it is forgotten with its child
                call.over = True
                self.pool.dead.append(PID)
                self.dispatcher.end_stuck_and_expired()
                self.pool.dead.remove(PID)
                self.dispatcher.send_next_calls()
                self.assertEqual(self.last.batch.job_ids, (UUID(item.id),))
                self.assertEqual(self.last.batch.takes_over, (call.batch.batch,))

    def test_where_all_that_is_held_is_in_hand_nothing_is_looked_for(self) -> None:
        while len(self.dispatcher.backlog.held) < self.dispatcher.prefetch_count:
            self.add(owner="many")
        self.dispatcher.backlog.queues["a"] = BatchQueue(Limits(max_batch_size=8, max_batch_tokens=64), CostModel())
        with patch.object(UnfetchedJobFinder, "request_look") as request_look:
            self.dispatcher.send_next_calls()
        self.assertFalse(request_look.called)
