"""Acts on many jobs: all of them and no other, once, a little at a time, whoever does them and wherever they die."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any
from unittest.mock import patch

from django.test import TransactionTestCase

from inference import errors
from inference.catalog.lookup import get_spec
from inference.fields.ids import make_row_id
from inference.models import Act, ActKind, ActState, Job, Status
from inference.store import transitions
from inference.submission import jobs
from inference.submission.submissions import Submission
from inference.upkeep import acts
from tests.conditions import PATIENCE_S, ago

QUEUED = {"status": "queued", "whole__isnull": True}
FAILED = {"status": "failed", "whole__isnull": True}


def make_jobs(count: int, **values: Any) -> list[Job]:
    return Job.objects.bulk_create(Job(**{"model": "embeddings", "inputs": "x", **values}) for _ in range(count))


def make_act(kind: ActKind, selection: dict[str, Any], **values: Any) -> Act:
    newest = make_row_id()
    counted = acts.filter_selected_jobs(selection, newest).count()
    return Act.objects.create(kind=kind, selection=selection, **{"newest": newest, "counted": counted, **values})


def after(act: Act, rounds: int = 1) -> Act:
    for _ in range(rounds):
        acts.continue_oldest_act()
    act.refresh_from_db()
    return act


class ActsCase(TransactionTestCase):
    """A round takes as long as it takes, and who was refused is not back before the test lets it."""

    def setUp(self) -> None:
        longest = datetime.timedelta(seconds=PATIENCE_S)
        self.enterContext(patch.multiple(acts, ROUND_S=PATIENCE_S, REFUSED=longest, LEASE=longest))


class CancelTests(ActsCase):
    def test_all_that_were_counted_are_cancelled_and_no_other(self) -> None:
        make_jobs(1203)
        others = make_jobs(2, status=Status.SUCCEEDED) + make_jobs(2, model="other", status=Status.RUNNING)
        act = make_act(ActKind.CANCEL, QUEUED)
        [late] = make_jobs(1)
        act = after(act)
        self.assertEqual((act.state, act.done, act.left, act.counted), (ActState.DONE, 1203, {}, 1203))
        self.assertIsNotNone(act.finished_at)
        self.assertEqual(Job.objects.filter(status=Status.CANCELLED).count(), 1203)
        self.assertEqual(
            {job.status for job in Job.objects.filter(pk__in=[job.pk for job in others])}, {"succeeded", "running"}
        )
        late.refresh_from_db()
        self.assertEqual(late.status, Status.QUEUED)

    def test_never_more_than_were_confirmed(self) -> None:
        make_jobs(7)
        self.assertEqual(after(make_act(ActKind.CANCEL, QUEUED, counted=3), rounds=3).done, 3)
        self.assertEqual(Job.objects.filter(status=Status.QUEUED).count(), 4)

    def test_what_was_finished_meanwhile_is_counted_as_left(self) -> None:
        make_jobs(3, status=Status.SUCCEEDED)
        act = after(make_act(ActKind.CANCEL, {"model": "embeddings"}))
        self.assertEqual((act.done, act.left), (0, {"succeeded already": 3}))

    def test_a_long_one_takes_several_rounds_and_can_be_stopped(self) -> None:
        make_jobs(10)
        act = make_act(ActKind.CANCEL, QUEUED)
        with patch.object(acts, "CANCELLED_AT_ONCE", 3), patch.object(acts, "ROUND_S", 0.0):
            self.assertEqual((after(act).done, act.state, act.lease_until), (3, ActState.RUNNING, None))
            Act.objects.update(state=ActState.STOPPED)
            self.assertEqual(after(act, rounds=3).done, 3)

    def test_one_that_dies_in_the_middle_is_gone_on_with_once_its_lease_is_over(self) -> None:
        make_jobs(6)
        act = make_act(ActKind.CANCEL, QUEUED)
        with (
            patch.object(acts, "CANCELLED_AT_ONCE", 2),
            patch.object(acts, "_record_progress", side_effect=KeyboardInterrupt),
        ):
            self.assertRaises(KeyboardInterrupt, acts.continue_oldest_act)
        self.assertEqual(after(act).done, 0)  # leased
        Act.objects.update(lease_until=ago() - acts.LEASE)
        act = after(act)
        self.assertEqual((act.state, act.done), (ActState.DONE, 4))  # the others were cancelled, and found no more
        self.assertEqual(Job.objects.filter(status=Status.CANCELLED).count(), 6)

    def test_a_lease_from_before_the_clock_was_set_back_holds_nobody_up(self) -> None:
        make_jobs(2)
        act = make_act(ActKind.CANCEL, QUEUED)
        Act.objects.update(lease_until=ago() + acts.LEASE)
        self.assertEqual(after(act).done, 0)
        Act.objects.update(lease_until=ago(days=-1))
        self.assertEqual(after(act).done, 2)

    def test_of_two_workers_one_does_it(self) -> None:
        make_jobs(4)
        act = make_act(ActKind.CANCEL, QUEUED)
        cancel = transitions.cancel_jobs_with_parts

        def meanwhile(ids: Any) -> Any:
            acts.continue_oldest_act()
            return cancel(ids)

        with patch.object(transitions, "cancel_jobs_with_parts", side_effect=meanwhile) as calls:
            after(act)
        self.assertEqual((act.done, calls.call_count), (4, 1))

    def test_a_selection_that_rows_do_not_know_is_refused(self) -> None:
        self.assertRaises(ValueError, acts.filter_selected_jobs, {"inputs__contains": "x"}, make_row_id())


class RetryTests(ActsCase):
    def test_each_runs_again_once_though_the_worker_dies(self) -> None:
        make_jobs(5, status=Status.FAILED)
        act = make_act(ActKind.RETRY, FAILED)
        with patch.object(acts, "RETRIED_AT_ONCE", 2):
            with patch.object(acts, "_record_progress", side_effect=KeyboardInterrupt):
                self.assertRaises(KeyboardInterrupt, acts.continue_oldest_act)
            Act.objects.update(lease_until=None)
            act = after(act)
        self.assertEqual((act.state, act.done), (ActState.DONE, 5))
        self.assertEqual(Job.objects.filter(status=Status.QUEUED).count(), 5)
        self.assertEqual(Job.objects.filter(status=Status.FAILED).count(), 5)

    def test_alone(self) -> None:
        make_jobs(2, status=Status.FAILED)
        after(make_act(ActKind.RETRY_ALONE, FAILED))
        self.assertEqual(set(Job.objects.filter(status=Status.QUEUED).values_list("recoveries", flat=True)), {2})

    def test_what_can_never_run_is_counted_by_its_reason(self) -> None:
        make_jobs(2, status=Status.FAILED, model="gone")
        act = after(make_act(ActKind.RETRY, FAILED))
        self.assertEqual((act.state, act.done, sum(act.left.values())), (ActState.DONE, 0, 2))
        self.assertIn("There is no model 'gone'", next(iter(act.left)))

    def test_no_line_of_the_log_quotes_what_was_sent(self) -> None:
        make_jobs(1, status=Status.FAILED, parameters={"normalize": "marked"})
        with self.assertLogs("inference.upkeep") as logged:
            act = after(make_act(ActKind.RETRY, FAILED))
        self.assertIn("marked", str(act.left))
        self.assertNotIn("marked", str(logged.output))

    def test_a_full_queue_is_waited_for(self) -> None:
        make_jobs(4, status=Status.FAILED)
        act = make_act(ActKind.RETRY, FAILED)
        submit, room = jobs.submit, [True, True, False]

        def full(submission: Any) -> Job:
            if room and not room.pop(0):
                raise errors.QueueFull("no room")
            return submit(submission)

        with patch.object(jobs, "submit", side_effect=full):
            self.assertEqual((after(act).done, act.state), (2, ActState.RUNNING))
            other = make_act(ActKind.CANCEL, {"model": "none"})
            self.assertEqual(
                (after(other).state, after(act).done), (ActState.DONE, 2)
            )  # others have their turn meanwhile
            Act.objects.filter(pk=act.pk).update(lease_until=None)
            self.assertEqual((after(act).done, act.state), (4, ActState.DONE))

    def test_half_of_the_queue_is_left_to_clients(self) -> None:
        spec = dataclasses.replace(get_spec("embeddings"), max_queued=6)
        make_jobs(8, status=Status.FAILED)
        make_jobs(1)
        act = make_act(ActKind.RETRY, FAILED)
        with patch.object(jobs, "get_spec", return_value=spec):
            self.assertEqual((after(act).done, act.state), (2, ActState.RUNNING))
            for _ in range(3):
                jobs.submit(Submission(spec=spec, inputs="x"))
            self.assertRaises(errors.QueueFull, jobs.submit, Submission(spec=spec, inputs="x"))
            Job.objects.filter(status=Status.QUEUED).update(status=Status.SUCCEEDED)
            Act.objects.update(lease_until=None)
            self.assertEqual(after(act).done, 5)

    def test_a_list_of_more_parts_than_that_runs_again_beside_others(self) -> None:
        spec = dataclasses.replace(get_spec("embeddings"), max_queued=6, max_batch_size=1)
        [whole] = make_jobs(1, status=Status.FAILED, inputs=[], parts=4)
        for place in range(4):
            make_jobs(1, status=Status.FAILED, whole=whole.pk, place=place, inputs=["x"])
        _, *others = make_jobs(3)
        act = make_act(ActKind.RETRY, {**FAILED, "id": str(whole.pk)})
        with patch.object(jobs, "get_spec", return_value=spec):
            self.assertEqual((after(act).done, act.left), (0, {}))
            Job.objects.filter(pk__in=[other.pk for other in others]).update(status=Status.SUCCEEDED)
            Act.objects.update(lease_until=None)
            self.assertEqual((after(act).done, act.left), (1, {}))

    def test_of_parts_the_list_runs_again_once(self) -> None:
        [whole] = make_jobs(1, status=Status.FAILED, inputs=["x", "y"], parts=2)
        parts = make_jobs(2, status=Status.FAILED, whole=whole.pk, place=0, error_code="crashed")
        act = after(make_act(ActKind.RETRY, {"error_code": "crashed"}))
        self.assertEqual((act.done, act.left, len(parts)), (2, {}, 2))
        self.assertEqual([job.inputs for job in Job.objects.filter(status=Status.QUEUED)], [["x", "x"]])

    def test_reasons_are_bounded(self) -> None:
        make_jobs(50, status=Status.FAILED)
        act = make_act(ActKind.RETRY, FAILED)
        with patch.object(
            jobs, "fetch", side_effect=lambda job_id: self.fail_with(errors.JobNotFound(f"There is no job {job_id}."))
        ):
            act = after(act)
        self.assertEqual((act.state, len(act.left), act.left[acts.OTHERS]), (ActState.DONE, 21, 30))

    def fail_with(self, error: Exception) -> Job:
        raise error

    def test_old_ones_are_removed(self) -> None:
        old = make_act(ActKind.CANCEL, QUEUED, finished_at=ago() - 2 * acts.KEPT)
        new = make_act(ActKind.CANCEL, QUEUED, finished_at=ago())
        acts.remove_old_acts()
        self.assertEqual(list(Act.objects.all()), [new])
        self.assertNotEqual(old, new)
