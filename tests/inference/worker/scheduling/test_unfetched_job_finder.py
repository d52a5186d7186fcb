"""What a full worker finds in the database of those whose messages it has not seen."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock
from uuid import uuid4

from django.contrib.auth.models import User
from django.db import connection
from django.test import TestCase
from django.test.utils import CaptureQueriesContext

from inference.batching.costs import CostModel
from inference.batching.queue import BatchQueue, Limits
from inference.models import Job, Status, Worker, WorkerState
from inference.status import owner_queues
from inference.store.job_messages import make_message
from inference.values.priority import Priority
from inference.worker.scheduling.unfetched_job_finder import (
    MOST_GONE,
    MOST_JOBS,
    PORTION_S,
    UnfetchedJobFinder,
    make_item,
)

CALLS = 4


class UnfetchedTests(TestCase):
    def setUp(self) -> None:
        self.many, self.few = (User.objects.create_user(name) for name in ("many", "few"))
        self.queue = BatchQueue(Limits(max_batch_size=4, max_batch_tokens=8192), CostModel())
        self.backlog = Mock(queues={"echo": self.queue}, held={}, gone_share=0.0)
        self.backlog.replicas.unpaused_models = {"echo"}
        self.unfetched = UnfetchedJobFinder(uuid4())

    def wait(self, owner: User | None, *, count: int = 1, held: bool = False, **values: Any) -> list[Job]:
        """Make jobs that wait, and have the worker hold them, or not."""
        jobs = [Job(**{"model": "echo", "inputs": "x", "owner": owner, **values}) for _ in range(count)]
        Job.objects.bulk_create(jobs)
        for job in jobs if held else ():
            self.queue.add(make_item(job))
        return jobs

    def found(self) -> list[str]:
        """Return the jobs that a look brings, in their order."""
        self.backlog.hold_job.reset_mock()
        self.unfetched.request_look(self.backlog, calls=CALLS)
        self.unfetched.look_for_jobs()
        self.unfetched.hand_over_found_jobs(self.backlog)
        return [item.id for (item, _), _ in self.backlog.hold_job.call_args_list]

    def assert_found(self, jobs: list[Job]) -> None:
        self.assertEqual(set(self.found()), {str(job.pk) for job in jobs})

    def test_it_finds_the_jobs_of_owners_of_whom_none_is_held(self) -> None:
        self.wait(self.many, count=20, held=True)
        self.wait(self.many, count=20)
        self.assert_found(self.wait(self.few) + self.wait(None))

    def test_it_finds_those_of_priorities_of_which_none_is_held(self) -> None:
        self.wait(self.many, count=4, priority=Priority.HIGH, held=True)
        self.assert_found(self.wait(self.many) + self.wait(self.many, priority=Priority.LOW))

    def test_what_is_found_says_what_the_message_says(self) -> None:
        (job,) = self.wait(self.few, size=3, length=7, parameters={"top_k": 1}, recoveries=2)
        self.found()
        (item, model), _ = self.backlog.hold_job.call_args
        message = make_message(job)
        self.assertEqual(
            (
                model,
                item.id,
                item.group,
                item.size,
                item.length,
                item.priority,
                item.arrived_at_s,
                item.owner,
                item.alone,
            ),
            ("echo", message.job_id, message.group, 3, 7, 2, message.created_at, message.owner, True),
        )

    def test_of_one_owner_it_takes_what_the_calls_in_hand_hold(self) -> None:
        self.wait(self.many, held=True)
        self.wait(self.few, count=200)
        self.assertEqual(len(self.found()), CALLS * 4)

    def test_of_one_owner_it_takes_what_an_engine_runs_in_a_while(self) -> None:
        for _ in range(100):
            self.queue.learn_call(4, 1, 0.01, jobs=4)
        self.wait(self.many, held=True)
        self.wait(self.few, count=200)
        self.assertAlmostEqual(len(self.found()), 400 * PORTION_S, delta=1)

    def test_of_many_owners_it_takes_some_each(self) -> None:
        users = User.objects.bulk_create(User(username=f"user {number}") for number in range(20))
        for user in users:
            self.wait(user, count=20)
        found = set(self.found())
        owners = Job.objects.filter(pk__in=found).values_list("owner", flat=True)
        self.assertEqual((set(owners), len(found) <= MOST_JOBS), ({user.pk for user in users}, True))

    def test_it_goes_through_more_owners_than_a_look_has_room_for(self) -> None:
        users = User.objects.bulk_create(User(username=f"user {number}") for number in range(70))
        jobs = {str(job.pk) for user in users for job in self.wait(user)}
        self.assertEqual({job_id for _ in range(3) for job_id in self.found()}, jobs)

    def test_owners_of_whom_only_others_run_jobs_are_not_in_the_way(self) -> None:
        users = User.objects.bulk_create(
            User(username=f"user {number}") for number in range(owner_queues.MOST_OWNERS + 1)
        )
        *others, last = users
        for user in others:
            self.wait(user, model="other")
        (job,) = self.wait(last)
        self.assertEqual({job_id for _ in range(2) for job_id in self.found()}, {str(job.pk)})

    def test_wholes_and_jobs_of_other_models_and_those_that_run_are_nothing_to_it(self) -> None:
        self.wait(self.few, parts=3)
        self.wait(self.few, model="other")
        self.wait(self.few, status=Status.RUNNING)
        self.assertEqual(self.found(), [])

    def test_what_is_held_by_now_is_not_added_again(self) -> None:
        (job,) = self.wait(self.few)
        self.backlog.held = {str(job.pk): object()}
        self.assertEqual(self.found(), [])

    def test_those_that_are_held_and_have_ended_are_dropped(self) -> None:
        ended, running, _ = self.wait(self.many, count=3, held=True)
        Job.objects.filter(pk=ended.pk).update(status=Status.CANCELLED)
        Job.objects.filter(pk=running.pk).update(status=Status.RUNNING)
        self.found()
        self.assertEqual([call.args for call in self.backlog.drop_ended_job.call_args_list], [(str(ended.pk),)])

    def test_the_oldest_job_of_an_owner_is_found_first(self) -> None:
        oldest, *_ = self.wait(self.few, count=200)
        self.assertEqual(self.found()[0], str(oldest.pk))

    def test_a_look_has_as_many_statements_however_many_wait(self) -> None:
        self.found()
        self.wait(self.many, count=50, held=True)
        self.wait(self.few, count=50)
        with CaptureQueriesContext(connection) as queries:
            self.found()
        reads = [query for query in queries if query["sql"].lstrip().startswith(("SELECT", "WITH"))]
        self.assertEqual(len(reads), 3)

    def test_workers_of_one_model_divide_the_owners_among_them(self) -> None:
        users = User.objects.bulk_create(User(username=f"user {number}") for number in range(20))
        jobs = {str(job.pk) for user in users for job in self.wait(user)}
        made = {"pid": 1, "state": WorkerState.READY, "model_names": ["echo"]}
        others = [Worker.objects.create(id=uuid4(), name=f"w{number}", **made) for number in range(3)]
        Worker.objects.filter(pk=others[2].pk).update(model_names=["other"])
        found = []
        for worker in others[:2]:
            self.unfetched = UnfetchedJobFinder(worker.pk)
            found.append(set(self.found()))
        self.assertEqual((found[0] | found[1], found[0] & found[1]), (jobs, set()))
        self.assertTrue(all(found))

    def test_who_has_much_waits_for_messages_where_too_many_come_after_their_jobs_have_run(self) -> None:
        self.backlog.gone_share = 2 * MOST_GONE
        self.wait(self.few, count=20)
        self.assert_found(self.wait(None, count=3))

    def test_nothing_is_queried_while_nothing_is_served(self) -> None:
        self.backlog.replicas.unpaused_models = set()
        with self.assertNumQueries(0):
            self.found()
