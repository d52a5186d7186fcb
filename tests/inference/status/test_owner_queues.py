"""Whose jobs wait, and what that says of how long one waits."""

from __future__ import annotations

from typing import Any
from unittest import skipUnless
from unittest.mock import patch

from django.contrib.auth.models import User
from django.db import connection
from django.test import TestCase

from inference.batching.shares import ONE_IN
from inference.catalog import lookup
from inference.models import Job, Status
from inference.status import owner_queues, queue_position
from inference.status.owner_queues import OwnerQueue
from inference.values.priority import Priority


class OwnersCase(TestCase):
    def setUp(self) -> None:
        self.many, self.few = (User.objects.create_user(name) for name in ("many", "few"))

    def wait(self, owner: User | None, count: int = 1, **values: Any) -> list[Job]:
        return Job.objects.bulk_create(
            Job(**{"model": "echo", "inputs": "x", "owner": owner, **values}) for _ in range(count)
        )


class LineTests(OwnersCase):
    def test_each_model_priority_and_owner_of_whom_a_job_waits_is_a_line(self) -> None:
        self.wait(self.many, 5)
        self.wait(self.many, priority=Priority.LOW)
        self.wait(self.few, model="other")
        self.wait(None)
        self.wait(self.few, status=Status.SUCCEEDED)
        expected = {("echo", 2, self.many.pk), ("echo", 3, self.many.pk), ("other", 2, self.few.pk), ("echo", 2, None)}
        self.assertEqual(set(owner_queues.find_owner_queues_with_jobs(["echo", "other"])[0]), expected)
        self.assertEqual(
            owner_queues.find_owner_queues_with_jobs(["other"], after=self.many.pk)[0], [("other", 2, self.few.pk)]
        )

    def test_the_first_jobs_of_each_line_come_in_the_order_of_their_ids(self) -> None:
        many, few = self.wait(self.many, 5), self.wait(None, 3)
        jobs = owner_queues.read_first_jobs([OwnerQueue("echo", 2, self.many.pk), OwnerQueue("echo", 2, None)], most=2)
        self.assertEqual([job.pk for job in jobs], [job.pk for job in (*many[:2], *few[:2])])
        self.assertEqual(owner_queues.read_first_jobs([], most=2), [])

    def test_an_owner_is_named_as_in_messages(self) -> None:
        self.assertEqual(
            (owner_queues.format_owner_id(None), owner_queues.format_owner_id(self.many.pk)), (None, str(self.many.pk))
        )

    @skipUnless(connection.vendor == "postgresql", "SQLite is told which index to read")
    def test_only_their_index_is_read_whatever_the_planner_knows(self) -> None:
        plans: list[str] = []

        def note_plan(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            if "inference_job" in sql:
                with context["connection"].cursor() as cursor:
                    cursor.cursor.execute(f"EXPLAIN {sql}", params)
                    plans.extend(line for (line,) in cursor.cursor.fetchall() if " on inference_job" in line)
            return execute(sql, params, many, context)

        self.wait(self.many, 200)
        with connection.cursor() as cursor, owner_queues.disable_sorting(), connection.execute_wrapper(note_plan):
            cursor.execute("SET LOCAL random_page_cost = 1000")  # as if the whole table were read sooner
            owner_queues.read_first_jobs(
                [*owner_queues.find_owner_queues_with_jobs(["echo"])[0], OwnerQueue("echo", 2, None)], most=2
            )
        self.assertEqual([plan for plan in plans if "job_queued_by_owners" not in plan], [])
        self.assertGreater(len(plans), 4)


class PlaceTests(OwnersCase):
    def test_the_first_job_of_an_owner_is_behind_one_of_each_other(self) -> None:
        self.wait(self.many, 50)
        self.wait(None, 50)
        (job,) = self.wait(self.few)
        self.assertEqual(queue_position.find_position(job).position, 3)

    def test_the_third_is_behind_three_of_each(self) -> None:
        self.wait(self.many, 50)
        *_, third = self.wait(self.few, 3)
        self.assertEqual(queue_position.find_position(third).position, 6)

    def test_it_is_never_later_than_by_the_order_of_arrival(self) -> None:
        self.wait(self.many, 2)
        first, *_, last = self.wait(self.few, 10)
        self.wait(self.many, 50)
        self.assertEqual(
            (queue_position.find_position(first).position, queue_position.find_position(last).position), (2, 12)
        )

    def test_higher_priorities_leave_one_batch_in_so_many(self) -> None:
        self.wait(self.many, 50, priority=Priority.HIGH)
        (job,) = self.wait(self.few)
        self.assertEqual(queue_position.find_position(job).position, ONE_IN)

    def test_those_batches_are_full(self) -> None:
        most = lookup.get_catalog()["embeddings"].max_batch_size
        self.wait(self.many, (ONE_IN + 2) * most, priority=Priority.HIGH, model="embeddings")
        job, *_, last = self.wait(self.few, most, model="embeddings")
        before = (ONE_IN - 1) * most
        self.assertEqual(
            (queue_position.find_position(job).position, queue_position.find_position(last).position),
            (before + 1, before + most),
        )

    def test_before_the_next_job_of_an_owner_are_its_own_and_as_many_of_others(self) -> None:
        self.wait(self.many, 50)
        self.wait(self.few, 2)
        ahead = {
            name: queue_position.count_jobs_ahead("echo", 2, owner)
            for name, owner in (("few", self.few.pk), ("none", None))
        }
        self.assertEqual(ahead, {"few": 5, "none": 2})

    def test_where_too_many_wait_to_be_counted_the_order_of_arrival_decides(self) -> None:
        *_, last = self.wait(self.many, 12)
        with patch.object(owner_queues, "MOST_COUNTED", 10):
            (job,) = self.wait(self.few)
            self.assertEqual(
                (queue_position.find_position(last).position, queue_position.find_position(job).position), (12, 13)
            )
            self.assertGreater(queue_position.count_jobs_ahead("echo", 2, None), 1_000_000)
