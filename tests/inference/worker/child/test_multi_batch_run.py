"""Several short engine calls in one call of a child: when, and what becomes of them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

from django.test import TransactionTestCase

from inference import errors
from inference.catalog.specs import ModelSpec
from inference.engines.base import Engine
from inference.models import Job, Status
from inference.store import notices, rows, transitions
from inference.worker.calls import BatchCall, BatchReport, ChildCommand
from inference.worker.child import multi_batch_run, served_calls
from inference.worker.child.loaded_models import LoadedModels
from inference.worker.scheduling.backlog import HURRIED_S, LEARNT, MOST_TOGETHER, TOGETHER_S
from tests.inference.worker.test_dispatch import DispatcherCase

LOW, NORMAL = 3, 2
SHORT_S = TOGETHER_S / 20


class TogetherTests(DispatcherCase):
    """Which batches share a call."""

    def learn(self, model: str = "a", seconds: float = SHORT_S) -> None:
        for _ in range(LEARNT):
            self.dispatcher.backlog.queues[model].costs.learn_call(8, 10, seconds)

    def wait(self, count: int, **values: Any) -> list[UUID]:
        return [self.add(**{"priority": LOW, **values})[0] for _ in range(count)]

    def shares(self, count: int = 30, **values: Any) -> tuple[int, ...]:
        self.wait(count, **values)
        self.dispatcher.send_next_calls()
        shares: tuple[int, ...] = self.last.batch.shares
        return shares

    @property
    def is_called_back(self) -> bool:
        return self.last.batch.number in self.replicas.replicas[0].shared.called_back

    def test_short_batches_of_what_waits_together_share_a_call(self) -> None:
        self.learn()
        ids = self.wait(30)
        self.dispatcher.send_next_calls()
        self.assertEqual(self.last.batch.shares, (8, 8, 8, 6))
        self.assertEqual(set(self.last.batch.job_ids), set(ids))

    def test_not_before_it_is_known_how_long_they_take(self) -> None:
        self.assertEqual(self.shares(), ())

    def test_fewer_where_reading_takes_longer_than_the_engine(self) -> None:
        self.learn()
        most = len(self.shares())
        self.pool.finish(self.last)
        self.dispatcher.backlog.queues["a"].costs.learn_reading(10 * SHORT_S * LEARNT)
        self.assertLess(len(self.shares()), most)

    def test_not_what_takes_long(self) -> None:
        self.learn(seconds=TOGETHER_S)
        self.assertEqual(self.shares(), ())

    def test_as_many_as_are_short_together(self) -> None:
        self.learn(seconds=TOGETHER_S / 2.5)
        self.assertEqual(self.shares(), (8, 8))

    def test_no_more_than_a_statement_takes_well(self) -> None:
        self.learn(seconds=TOGETHER_S / 1000)
        self.assertLessEqual(sum(self.shares(2 * MOST_TOGETHER)), MOST_TOGETHER)

    def test_each_replica_has_its_share(self) -> None:
        self.learn()
        with patch.object(type(self.replicas), "able_child_count", 2):
            self.assertEqual(self.shares(32), (8, 8))

    def test_where_somebody_waits_for_each_only_what_is_shorter_than_what_is_done_around_it(self) -> None:
        self.learn(seconds=HURRIED_S / 2.5)
        costs = self.dispatcher.backlog.queues["a"].costs
        costs.learn_overhead(HURRIED_S / 5)
        self.assertEqual(self.shares(priority=NORMAL), ())
        self.setUp()
        self.learn(seconds=HURRIED_S / 2.5)
        self.dispatcher.backlog.queues["a"].costs.learn_overhead(HURRIED_S)
        self.assertEqual(self.shares(priority=NORMAL), (8, 8))

    def test_what_follows_is_as_short_itself(self) -> None:
        """Those before it are answered with it."""
        for priority, limit_s in ((LOW, TOGETHER_S), (NORMAL, HURRIED_S)):
            with self.subTest(priority):
                self.setUp()
                costs = self.dispatcher.backlog.queues["a"].costs
                for _ in range(LEARNT):
                    costs.learn_call(8, 10, limit_s / 20)
                    costs.learn_call(8, 1000, limit_s * 2)
                costs.learn_overhead(HURRIED_S / 2)
                self.wait(16, priority=priority)
                self.wait(8, priority=priority, length=1000)
                self.dispatcher.send_next_calls()
                self.assertEqual(self.last.batch.shares, (8, 8))

    def test_where_somebody_waits_so_is_what_follows(self) -> None:
        costs = self.dispatcher.backlog.queues["a"].costs
        for _ in range(LEARNT):
            costs.learn_call(8, 10, HURRIED_S / 10)
            costs.learn_call(8, 1000, HURRIED_S / 2)
        costs.learn_overhead(HURRIED_S / 5)
        self.wait(8, priority=NORMAL)
        self.wait(8, priority=NORMAL, length=1000)
        self.dispatcher.send_next_calls()
        self.assertEqual(self.last.batch.shares, ())

    def test_not_beside_what_has_a_deadline(self) -> None:
        self.learn()
        self.assertEqual(self.shares(expires_at_s=1e12), ())

    def test_not_before_a_job_of_another_model_that_is_next(self) -> None:
        self.learn()
        self.wait(8)
        self.add("b", priority=LOW)
        self.assertEqual(self.shares(22), ())

    def test_not_while_something_is_run_again(self) -> None:
        self.learn()
        self.wait(20)
        self.dispatcher.send_next_calls()
        self.pool.lose(self.last)
        self.assertEqual(self.shares(), ())

    def test_the_child_is_called_back_for_what_goes_first(self) -> None:
        for model in ("a", "b"):
            with self.subTest(model):
                self.setUp()
                self.learn()
                self.shares()
                self.assertFalse(self.is_called_back)
                self.wait(3)
                self.dispatcher.send_next_calls()
                self.assertFalse(self.is_called_back)
                self.add(model, priority=NORMAL)
                self.dispatcher.send_next_calls()
                self.assertTrue(self.is_called_back)

    def test_nor_for_older_ones_of_the_same_that_came_late(self) -> None:
        self.learn()
        self.shares()
        self.wait(1, arrived_at_s=self.clock - 1.0)
        self.dispatcher.send_next_calls()
        self.assertFalse(self.is_called_back)

    def test_nor_for_older_ones_of_another_length(self) -> None:
        self.learn()
        for place in range(60):
            self.wait(1, length=10 + 40 * (place % 3))
        self.dispatcher.send_next_calls()
        self.assertGreater(len(self.last.batch.shares), 1)
        self.assertLess(sum(self.last.batch.shares), 60)
        self.assertFalse(self.is_called_back)

    def test_what_had_not_begun_waits_again_in_its_place(self) -> None:
        self.learn()
        ids = self.wait(30)
        self.dispatcher.send_next_calls()
        first, (urgent, _) = self.last, self.add(priority=NORMAL)
        done, unbegun = first.batch.job_ids[:8], first.batch.job_ids[8:]
        self.pool.finish(first, unbegun=frozenset(unbegun))
        self.assertEqual(self.last.batch.job_ids[0], urgent)
        ran = {*done, *self.last.batch.job_ids}
        self.pool.finish(self.last)
        self.assertEqual(set(self.last.batch.job_ids), set(ids) - ran)

    def test_of_what_had_not_begun_only_what_was_claimed_waits_again(self) -> None:
        self.learn()
        ids = self.wait(16)
        self.dispatcher.send_next_calls()
        done, unbegun = ids[:8], ids[8]
        self.pool.finish(self.last, dict.fromkeys(done, ""), unbegun=frozenset({unbegun}))
        self.assertEqual(self.last.batch.job_ids, (unbegun,))
        self.assertEqual(set(self.dispatcher.backlog.held), {str(unbegun)})

    def test_of_a_child_that_died_the_engine_calls_run_apart(self) -> None:
        self.learn()
        self.shares()
        batches, lost = _split(self.last.batch), self.last
        self.pool.lose(lost)
        for job_ids in batches:
            self.assertEqual((self.last.batch.job_ids, self.last.batch.shares), (job_ids, ()))
            self.assertEqual(self.last.batch.takes_over, (lost.batch.batch,))
            self.pool.finish(self.last)
        self.assertEqual(len(self.dispatcher.backlog.held), 0)

    def test_a_culprit_is_found_among_those_of_its_engine_call(self) -> None:
        self.learn()
        culprit = self.wait(30)[11]
        self.dispatcher.send_next_calls()
        crashes = 0
        while self.dispatcher.backlog.held:
            if culprit in self.last.batch.job_ids and not self.last.batch.verdict:
                crashes += 1
                self.pool.lose(self.last)
            else:
                self.pool.finish(self.last, {culprit: errors.Crashed.code} if self.last.batch.verdict else None)
        self.assertLessEqual(crashes, 1 + 6)

    def test_they_are_run_apart_too_after_what_no_job_is_to_blame_for(self) -> None:
        causes = (errors.StoreUnavailable("away"), errors.ModelUnavailable("not loaded"), RuntimeError("a bug"))
        for cause in (*causes, errors.DeviceFailed("sticky")):
            with self.subTest(cause.code if isinstance(cause, errors.InferenceError) else "bug"):
                self.setUp()
                self.learn()
                self.shares()
                self.pool.lose(self.last, cause)
                again = [len(call.batch.job_ids) for call in self.pool.calls[1:]]
                again += [len(part.jobs) for part in self.dispatcher.backlog.isolation.parts]
                self.assertEqual(again, [8, 8, 8, 6])

    def test_each_engine_call_is_learnt_from(self) -> None:
        self.learn()
        self.shares(16)
        costs = self.dispatcher.backlog.queues["a"].costs
        before, overhead_s = costs.calls, costs.overhead_s
        each = tuple(
            BatchReport(errors=dict.fromkeys(ids, ""), engine_s=SHORT_S, size=8, length=10, calls=1, overhead_s=9.0)
            for ids in _split(self.last.batch)
        )
        self.pool.finish(self.last, each=each)
        self.assertEqual((costs.calls, costs.overhead_s), (before + 2, overhead_s))

    def test_more_is_held_of_what_shares_calls_only(self) -> None:
        self.learn()
        self.assertEqual(self.dispatcher.low_priority_prefetch, (0, []))
        self.wait(1)
        jobs, queues = self.dispatcher.low_priority_prefetch
        self.assertGreater(jobs, 0)
        self.assertEqual(queues, ["inference.a"])
        self.learn("b", seconds=10 * TOGETHER_S)
        self.wait(1, model="b")
        self.assertEqual(self.dispatcher.low_priority_prefetch, (jobs, queues))
        self.add(priority=NORMAL)
        self.assertEqual(self.dispatcher.low_priority_prefetch, (0, []))


def _split(call: BatchCall) -> list[tuple[UUID, ...]]:
    ids = iter(call.job_ids)
    return [tuple(next(ids) for _ in range(share)) for share in call.shares]


class Counting(Engine):
    """Answers with how many inputs a call has."""

    def __init__(self) -> None:
        super().__init__(ModelSpec(name="m", engine="x:Y"))
        self.calls: list[list[Any]] = []
        self.after: Callable[[], None] = lambda: None

    def load(self, device: str) -> None:
        """It has no weights."""

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        self.calls.append(inputs)
        self.after()
        if "bad" in inputs:
            raise ValueError("bad")
        return [len(inputs)] * len(inputs)


class SeveralStagesTests(TransactionTestCase):
    """What a child does with them."""

    def setUp(self) -> None:
        self.engine = Counting()
        self.replica = LoadedModels(
            worker=uuid4(),
            device="cpu",
            host_device="cpu",
            specs={self.engine.spec.digest: self.engine.spec},
            engines={self.engine.spec.load_digest: self.engine},
        )
        self.enterContext(patch.object(served_calls, "replica", self.replica, create=True))
        self.enterContext(patch.object(multi_batch_run, "LONGEST_S", 3600.0))  # no call comes back for being slow
        self.publish = self.enterContext(patch.object(notices, "publish_finished"))

    def run_jobs(self, *shares: list[Any], missing: int = 0) -> tuple[BatchReport, list[Job]]:
        jobs = [Job(model="m", inputs=text) for share in shares for text in share]
        if stored := jobs[missing:]:
            rows.insert_jobs(list(map(rows.prepare_row, stored)))
        spec = self.engine.spec
        call = BatchCall(
            batch=uuid4(),
            number=1,
            model="m",
            digest=spec.digest,
            job_ids=tuple(job.pk for job in jobs),
            shares=tuple(map(len, shares)),
            time_limit_s=3600,
        )
        report = served_calls.run_batch(call)
        for job in stored:
            job.refresh_from_db()
        return report, jobs

    def test_each_share_is_an_engine_call_and_a_batch_of_its_own_for_all_who_look(self) -> None:
        report, jobs = self.run_jobs(["a", "b"], ["c"])
        self.assertEqual(self.engine.calls, [["a", "b"], ["c"]])
        self.assertEqual(
            [(job.status, job.output, job.batch_size) for job in jobs],
            [
                (Status.SUCCEEDED, 2, 2),
                (Status.SUCCEEDED, 2, 2),
                (Status.SUCCEEDED, 1, 1),
            ],
        )
        self.assertEqual(len({job.batch for job in jobs}), 1)
        self.assertEqual([each.size for each in report.each], [2, 1])
        self.assertEqual(report.errors, {job.pk: "" for job in jobs})

    def test_one_claim_one_transaction_and_one_notice(self) -> None:
        self.run_jobs(["a"])  # writes the row of the figures
        with patch("inference.store.transitions.claim_jobs", wraps=transitions.claim_jobs) as claim:
            _, jobs = self.run_jobs(["a", "b"], ["c"], ["d"])
        self.assertEqual(claim.call_count, 1)
        self.assertEqual(set(self.publish.call_args.args[0]), {job.pk for job in jobs})
        self.assertEqual(self.publish.call_count, 2)

    def test_a_bad_input_fails_alone_in_its_call(self) -> None:
        report, jobs = self.run_jobs(["a", "b"], ["c", "bad"])
        self.assertEqual([job.error_code for job in jobs], ["", "", "", errors.EngineError.code])
        self.assertEqual([each.calls for each in report.each], [1, 3])

    def test_what_is_not_to_be_run_any_more_is_left_out(self) -> None:
        report, jobs = self.run_jobs(["gone"], ["gone", "b"], ["c"], missing=2)
        self.assertEqual(self.engine.calls, [["b"], ["c"]])
        self.assertEqual(report.errors, {job.pk: "" for job in jobs[2:]})

    def test_nothing_is_left_to_run(self) -> None:
        self.assertEqual(self.run_jobs(["gone"], ["gone"], missing=2)[0].errors, {})

    def test_called_back_it_records_what_it_has_and_leaves_the_rest(self) -> None:
        self.engine.after = lambda: operator.setitem(self.replica.shared.called_back, 0, 1)
        report, jobs = self.run_jobs(["a", "b"], ["c"], ["d"])
        self.assertEqual(report.unbegun, {jobs[2].pk, jobs[3].pk})
        self.assertEqual(report.errors, {job.pk: "" for job in jobs[:2]})
        self.assertEqual([job.status for job in jobs], [Status.SUCCEEDED] * 2 + [Status.QUEUED] * 2)
        self.assertEqual([(job.attempts, job.batch, job.worker) for job in jobs[2:]], [(0, None, None)] * 2)

    def test_a_worker_that_leaves_has_given_the_messages_of_the_rest_back(self) -> None:
        self.engine.after = lambda: setattr(self.replica.shared, "command", ChildCommand.DRAIN)
        with patch.object(multi_batch_run, "LONGEST_S", 0.0):
            _, jobs = self.run_jobs(["a"], ["b"])
        self.assertEqual((jobs[1].status, jobs[1].published_at), (Status.QUEUED, None))

    def test_it_comes_back_by_itself_when_it_takes_long(self) -> None:
        with patch.object(multi_batch_run, "LONGEST_S", 0.0):
            report, jobs = self.run_jobs(["a"], ["b"])
        self.assertEqual(report.unbegun, {jobs[1].pk})
