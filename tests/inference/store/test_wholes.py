"""A job that runs in parts: whatever becomes of these, in whatever order, and whoever records them, it ends once."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

from django.conf import settings
from django.db import connection
from django.db.models import Q
from django.test import TestCase, TransactionTestCase
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from inference import budget
from inference.catalog.sizes import lengths
from inference.models import Job, Status
from inference.store import job_rows, notices, outcome_records, transitions, wholes
from inference.store.outcome_records import Outcome
from tests.conditions import at_once

ROUNDS = 5
A_DAY = datetime.timedelta(days=1)  # before and after now, however slow the machine is
CHUNKS = job_rows.split_into_chunks
LOCKS = re.compile(r'SELECT "\w+"."id"[^,]*, "\w+"."parts"[^,]* FROM ')  # wholes


def make_whole(count: int, **values: Any) -> tuple[Job, list[Job]]:
    whole = Job.objects.create(model="echo", inputs=[], size=2 * count, parts=count, **values)
    new = (
        Job(model="echo", inputs=[f"{place}a", f"{place}b"], size=2, whole=whole.pk, place=2 * place, **values)
        for place in range(count)
    )
    return whole, Job.objects.bulk_create(new)


def claim(*jobs: Job, alone: bool = False) -> UUID:
    batch = uuid4()
    transitions.claim_jobs(
        [job.pk for job in jobs],
        batch,
        model="echo",
        time_limit_s=60,
        alone=alone,
        takes_over=(),
        worker=uuid4(),
        device="cpu",
    )
    return batch


def answer(part: Job, **values: Any) -> Outcome:
    values = {"output": [f"{part.place}", "more"], "output_size": 2, **values}
    return Outcome(job_id=part.pk, model="echo", whole=part.whole, **values)


def fail(part: Job, code: str = "engine_error") -> Outcome:
    return answer(part, output=None, output_size=None, error_code=code, error_detail=f"inputs[{part.place}]: no")


def record(batch: UUID, *outcomes: Outcome) -> int:
    return outcome_records.record_outcomes(batch, outcomes, batch_size=2 * len(outcomes))


def chunks_that_take_long(*arguments: Any) -> Any:
    wait = budget.counted_wait()
    with wait:
        wait.began_at -= 10
    return CHUNKS(*arguments)


class WholeCase(TestCase):
    def setUp(self) -> None:
        self.whole, self.parts = make_whole(4)

    def assert_whole(self, status: Status, code: str = "", detail: str = "") -> None:
        self.whole.refresh_from_db()
        found = self.whole.status, self.whole.error_code, self.whole.error_detail
        self.assertEqual(found, (status, code, detail))
        self.assertEqual(self.whole.finished_at is not None, self.whole.is_finished)

    def statuses(self) -> list[str]:
        return list(Job.objects.filter(whole=self.whole.pk).order_by("place").values_list("status", flat=True))


class EndTests(WholeCase):
    def test_nobody_claims_a_whole_and_it_runs_once_a_part_of_it_does(self) -> None:
        claim(self.whole)
        self.assert_whole(Status.QUEUED)
        claim(self.parts[1])
        self.assert_whole(Status.RUNNING)
        began_at = self.whole.started_at
        self.assertIsNotNone(began_at)
        claim(self.parts[0], self.parts[2])
        self.assert_whole(Status.RUNNING)
        self.assertEqual((self.whole.started_at, self.whole.attempts, self.whole.batch), (began_at, 1, None))

    def test_it_succeeds_with_the_last_of_its_parts_and_its_output_is_in_order(self) -> None:
        batch = claim(*self.parts)
        for part in self.parts[::-1]:
            self.assert_whole(Status.RUNNING)
            self.assertEqual(record(batch, answer(part)), 1)
        self.assert_whole(Status.SUCCEEDED)
        self.assertEqual(self.whole.output, ["0", "more", "2", "more", "4", "more", "6", "more"])
        self.assertEqual(set(Job.objects.filter(whole=self.whole.pk).values_list("output", flat=True)), {None})
        self.assertEqual(job_rows.read_inputs_of_whole(self.whole.pk), ["0a", "0b", "1a", "1b", "2a", "2b", "3a", "3b"])

    def test_whatever_json_answers_are_is_put_together_as_it_is(self) -> None:
        answers: list[list[Any]] = [[None, "a, ] b"], [[0.25, -1], {"é": [1e300]}], [[], {}], [True, 2**63 - 1]]
        record(claim(*self.parts), *(answer(part, output=out) for part, out in zip(self.parts, answers, strict=True)))
        self.whole.refresh_from_db()
        self.assertEqual(self.whole.output, [item for items in answers for item in items])

    def test_its_notice_is_published_when_it_ends_and_not_before(self) -> None:
        batch = claim(*self.parts)
        for number, part in enumerate(self.parts):
            with patch.object(notices, "publish_finished_jobs") as publish:
                record(batch, answer(part))
            (ids,) = publish.call_args.args
            self.assertEqual(self.whole.pk in ids, number == 3)

    def test_it_fails_with_the_first_in_its_list_that_failed_whichever_ran_first(self) -> None:
        batch = claim(*self.parts[:3])
        record(batch, fail(self.parts[2], "bad_output"))
        self.assert_whole(Status.RUNNING)
        self.assertEqual(self.statuses(), ["running", "running", "failed", "cancelled"])
        record(batch, fail(self.parts[1]), answer(self.parts[0]))
        self.assert_whole(Status.FAILED, "engine_error", "inputs[2]: no")

    def test_what_comes_behind_a_failed_part_is_not_run(self) -> None:
        batch = claim(*self.parts[:2])
        record(batch, fail(self.parts[0]))
        self.assert_whole(Status.FAILED, "engine_error", "inputs[0]: no")
        self.assertEqual(self.statuses(), ["failed", "cancelled", "cancelled", "cancelled"])
        self.assertEqual(record(batch, answer(self.parts[1])), 0)
        self.assertEqual(Job.objects.exclude(batch=batch).filter(pk=self.parts[2].pk, attempts=0).count(), 1)

    def test_outputs_that_are_too_many_numbers_together_fail_it(self) -> None:
        batch = claim(*self.parts)
        share = lengths.MOST_ANSWERED // 3
        record(batch, *(answer(part, output_size=share) for part in self.parts))
        self.assert_whole(Status.FAILED, "invalid_input", wholes.describe_overflow(4 * share))

    def test_it_is_cancelled_with_its_parts_and_stays_so(self) -> None:
        batch = claim(self.parts[0], self.parts[1])
        record(batch, answer(self.parts[0]))
        with patch.object(notices, "publish_finished_jobs") as publish:
            self.assertEqual(transitions.cancel_jobs_with_parts([self.whole.pk])["running"], 1)
        self.assertIn(self.whole.pk, publish.call_args.args[0])
        self.assertEqual(self.statuses(), ["succeeded", "cancelled", "cancelled", "cancelled"])
        self.assertEqual(record(batch, answer(self.parts[1])), 0)
        wholes.finish_wholes()
        self.assert_whole(Status.CANCELLED)

    def test_another_whole_in_the_same_batch_is_none_of_its_business(self) -> None:
        other, (first, *_) = make_whole(2)
        batch = claim(*self.parts, first)
        record(batch, fail(first), *map(answer, self.parts))
        self.assert_whole(Status.SUCCEEDED)
        other.refresh_from_db()
        self.assertEqual(other.status, Status.FAILED)

    def test_it_is_locked_once_where_some_of_its_parts_are_somebody_else_s_by_now(self) -> None:
        other, (first, *_) = make_whole(2)
        batch = claim(*self.parts, first)
        Job.objects.filter(pk=first.pk).update(batch=uuid4())
        with CaptureQueriesContext(connection) as queries:
            self.assertEqual(record(batch, *map(answer, self.parts), answer(first)), 4)
        locks = [sql for sql in (query["sql"] for query in queries) if LOCKS.match(sql)]
        self.assertEqual(len(locks), 2)  # in the transaction that was rolled back, and in the next
        self.assert_whole(Status.SUCCEEDED)
        other.refresh_from_db()
        self.assertEqual(other.status, Status.RUNNING)

    def test_a_job_without_parts_costs_no_more_statements(self) -> None:
        job = Job.objects.create(model="echo", inputs="x")
        with self.assertNumQueries(1):
            batch = claim(job)
        with self.assertNumQueries(4):  # a savepoint, as this is a transaction already; record, figures, its release
            record(batch, Outcome(job_id=job.pk, model="echo", output="y"))
        with self.assertNumQueries(3):  # it has ended: a look is enough
            transitions.cancel_job(job.pk)


class HousekeepingTests(WholeCase):
    def test_a_part_that_is_lost_fails_it(self) -> None:
        Job.objects.filter(pk=self.parts[0].pk).update(recoveries=settings.MAX_RECOVERIES - 1)
        claim(self.parts[0], alone=True)
        transitions.requeue_lost_jobs(Q(pk=self.parts[0].pk))
        wholes.finish_wholes()
        self.whole.refresh_from_db()
        self.assertEqual((self.whole.status, self.whole.error_code), (Status.FAILED, "lost"))
        self.assertEqual(self.statuses(), ["failed", "cancelled", "cancelled", "cancelled"])

    def test_nothing_is_given_back_of_a_whole(self) -> None:
        claim(self.parts[0])
        transitions.requeue_lost_jobs(Q(lease_until__lt=timezone.now() + A_DAY))
        self.assertEqual(self.statuses(), ["queued"] * 4)
        self.assert_whole(Status.RUNNING)

    def test_what_was_recorded_by_who_knows_of_no_wholes_is_settled(self) -> None:
        Job.objects.filter(whole=self.whole.pk).update(status=Status.SUCCEEDED, output=["x"])
        with patch.object(notices, "publish_finished_jobs") as publish:
            wholes.finish_wholes()
            wholes.finish_wholes()
        publish.assert_called_once_with([self.whole.pk])
        self.assert_whole(Status.SUCCEEDED)

    def test_one_with_deleted_parts_answers_for_no_other_inputs(self) -> None:
        batch = claim(*self.parts)
        Job.objects.filter(pk=self.parts[1].pk).delete()
        record(batch, *map(answer, self.parts))
        self.assert_whole(Status.FAILED, "lost", "Of the 4 parts of this list 3 are left: send it again.")

    def test_one_that_the_database_refuses_to_put_together_holds_up_no_other(self) -> None:
        other, _ = make_whole(2)
        Job.objects.exclude(whole=None).update(status=Status.SUCCEEDED, output=["x"])
        Job.objects.filter(whole=self.whole.pk).update(output={"no": "list"})
        with self.assertLogs("inference.store.wholes", "ERROR"):
            wholes.finish_wholes()
        self.assert_whole(Status.FAILED, "bad_output", "The database refused to store the answer.")
        other.refresh_from_db()
        self.assertEqual(other.output, ["x", "x"])

    def test_a_cancel_of_thousands_of_parts_is_not_cut_off_by_the_time_of_its_request(self) -> None:
        whole, _ = make_whole(3)
        slow = patch.object(job_rows, "split_into_chunks", chunks_that_take_long)
        with patch.dict(os.environ, DATABASE_ANSWER_S="4"), budget.request_budget(), slow:
            transitions.cancel_jobs_with_parts([whole.pk])
        self.assertEqual(set(Job.objects.filter(whole=whole.pk).values_list("status", flat=True)), {"cancelled"})

    def test_one_that_goes_on_is_let_alone(self) -> None:
        record(claim(self.parts[0]), answer(self.parts[0]))
        with self.assertNumQueries(1):
            wholes.finish_wholes()
        self.assert_whole(Status.RUNNING)

    def test_a_part_that_was_cancelled_by_itself_cancels_it(self) -> None:
        transitions.cancel_job(self.parts[0].pk)
        wholes.finish_wholes()
        self.assert_whole(Status.CANCELLED)


class ExpiryTests(TestCase):
    def expiring(self, *started: int) -> tuple[Job, list[Job], UUID]:
        whole, parts = make_whole(3, expires_at=timezone.now() + A_DAY)
        batch = claim(*(parts[number] for number in started)) if started else uuid4()
        Job.objects.update(expires_at=timezone.now() - A_DAY)
        transitions.expire_jobs()
        whole.refresh_from_db()
        return whole, parts, batch

    def test_one_that_nobody_started_expires_with_its_parts(self) -> None:
        whole, _, _ = self.expiring()
        self.assertEqual((whole.status, whole.error_code), (Status.EXPIRED, "expired"))
        self.assertEqual(set(Job.objects.values_list("status", flat=True)), {"expired"})

    def test_one_of_which_a_part_was_not_started_in_time_expires(self) -> None:
        whole, parts, batch = self.expiring(0, 1)
        self.assertEqual(whole.status, Status.RUNNING)
        record(batch, answer(parts[0]), answer(parts[1]))
        whole.refresh_from_db()
        self.assertEqual((whole.status, whole.error_code), (Status.EXPIRED, "expired"))

    def test_one_with_all_parts_started_in_time_does_not(self) -> None:
        whole, parts, batch = self.expiring(0, 1, 2)
        record(batch, *map(answer, parts))
        whole.refresh_from_db()
        self.assertEqual(whole.status, Status.SUCCEEDED)

    def test_nor_does_one_with_a_row_that_does_not_say_yet_that_they_were(self) -> None:
        whole, parts, batch = self.expiring(0, 1, 2)
        Job.objects.filter(pk=whole.pk).update(status=Status.QUEUED)
        transitions.expire_jobs()
        record(batch, *map(answer, parts))
        whole.refresh_from_db()
        self.assertEqual(whole.status, Status.SUCCEEDED)


class RaceTests(TransactionTestCase):
    """Each call with a connection of its own, at the same moment."""

    def count_notices(self, whole: Job, calls: Sequence[Callable[[], object]]) -> int:
        """How often who waits for the whole is told of its end."""
        ids: list[UUID] = []
        with patch.object(notices, "publish_finished_jobs", ids.extend):
            at_once(calls)
        whole.refresh_from_db()
        return ids.count(whole.pk)

    def claim_and_record(self, part: Job) -> None:
        record(claim(part), answer(part))

    def test_of_those_who_record_the_last_parts_at_once_one_completes_it(self) -> None:
        for _ in range(ROUNDS):
            whole, parts = make_whole(6)
            batches = [(claim(part), part) for part in parts]
            count = self.count_notices(whole, [partial(record, batch, answer(part)) for batch, part in batches])
            self.assertEqual((count, whole.status), (1, Status.SUCCEEDED))

    def test_of_two_wholes_in_the_same_batches_each_is_completed(self) -> None:
        for _ in range(ROUNDS):
            one, of_one = make_whole(4)
            other, of_other = make_whole(4)
            pairs = [(claim(*pair), pair) for pair in zip(of_one, of_other, strict=True)]
            calls = [partial(record, batch, *map(answer, pair[::-1])) for batch, pair in pairs]
            self.assertEqual(self.count_notices(one, calls), 1)
            other.refresh_from_db()
            self.assertEqual((one.status, other.status), (Status.SUCCEEDED, Status.SUCCEEDED))

    def test_parts_that_fail_at_once_end_it_with_the_first_of_them(self) -> None:
        for _ in range(ROUNDS):
            whole, parts = make_whole(4)
            batches = [(claim(part), part) for part in parts]
            count = self.count_notices(whole, [partial(record, batch, fail(part)) for batch, part in batches])
            self.assertEqual((count, whole.status, whole.error_detail), (1, Status.FAILED, "inputs[0]: no"))

    def test_a_cancel_and_the_last_records_end_it_once(self) -> None:
        for _ in range(ROUNDS):
            whole, parts = make_whole(4)
            batches = [(claim(part), part) for part in parts[:3]]
            calls: list[Callable[[], object]] = [partial(record, batch, answer(part)) for batch, part in batches]
            calls += [partial(transitions.cancel_jobs_with_parts, [whole.pk]), partial(self.claim_and_record, parts[3])]
            self.assertEqual(self.count_notices(whole, [*calls, wholes.finish_wholes]), 1)
            self.assertIn(whole.status, (Status.CANCELLED, Status.SUCCEEDED))
            unfinished = Job.objects.filter(whole=whole.pk, status__in=("queued", "running"))
            self.assertFalse(unfinished.exists())
