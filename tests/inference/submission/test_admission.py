"""Limits of the queue: exact within a process, cheap when they are reached, and never a promise that cannot be kept."""

import dataclasses
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock, patch

from django.contrib.auth import get_user_model
from django.db import OperationalError, connection, connections
from django.db.models import QuerySet
from django.test import TransactionTestCase
from django.test.utils import CaptureQueriesContext

from inference import budget, errors, process_resources
from inference.catalog import request_validation
from inference.catalog.lookup import get_spec
from inference.models import Job, Status
from inference.store import connections as store_connections
from inference.store import job_rows
from inference.submission import admission, bulk, jobs
from inference.submission.submissions import BulkItem, BulkSubmission, Submission, Terms
from inference.values.priority import Priority
from inference.web_process import queue_counter
from tests.conditions import PATIENCE_S, eventually
from tests.inference.submission import patience

MODEL = "embeddings"
SPEC = get_spec(MODEL)


class ShareTests(TransactionTestCase):
    def setUp(self) -> None:
        process_resources.current.queue_counters.clear()
        patience.lend(self)
        self.owner = get_user_model().objects.create(username="ada")

    def submit(self, limit: int = 3, **fields: Any) -> bool:
        """Whether it was let in."""
        try:
            jobs.submit(Submission(spec=SPEC, inputs="x", owner=self.owner, max_owned=limit, **fields))
        except errors.TooManyQueued as refused:
            self.assertTrue(refused.message.startswith(f"{limit} of your jobs wait"), refused.message)
            return False
        return True

    def submit_from_a_thread(self, number: int) -> bool:
        try:
            return self.submit(priority=(Priority.HIGH, Priority.NORMAL)[number % 2])
        finally:
            connections.close_all()

    def test_of_sixty_at_once_as_many_as_may_get_in(self) -> None:
        barrier = threading.Barrier(60)

        def submit(number: int) -> bool:
            barrier.wait(PATIENCE_S)
            return self.submit_from_a_thread(2 * number)

        with ThreadPoolExecutor(60) as pool:
            self.assertEqual(sum(pool.map(submit, range(60))), 3)
        self.assertEqual(Job.objects.count(), 3)
        Job.objects.update(status=Status.SUCCEEDED)
        self.assertTrue(self.submit())

    def test_those_of_several_priorities_share_the_limit(self) -> None:
        with ThreadPoolExecutor(20) as pool:
            list(pool.map(self.submit_from_a_thread, range(20)))
        self.assertEqual(Job.objects.filter(priority__lte=Priority.NORMAL).count(), 3)

    def test_one_after_the_other_from_several_processes_too(self) -> None:
        processes: list[dict[Any, Any]] = [{}, {}, {}]
        let_in = 0
        for number in range(12):
            with patch.object(process_resources.current, "queue_counters", processes[number % 3]):
                let_in += self.submit()
        self.assertEqual((let_in, Job.objects.count()), (3, 3))

    def test_what_was_not_stored_takes_no_place(self) -> None:
        with patch.object(process_resources.current.writer, "write_job", side_effect=errors.StoreUnavailable("away")):
            for _ in range(5):
                with self.assertRaises(errors.StoreUnavailable):
                    self.submit()
        self.assertEqual([self.submit() for _ in range(4)], [True, True, True, False])

    def test_more_than_ever_fit_are_refused_with_the_limit(self) -> None:
        items = [BulkItem(inputs="x")] * 5
        with self.assertRaisesRegex(
            errors.InvalidInput, "they make 5 jobs, and at most 3 fit in your share .* send fewer at once"
        ):
            bulk.submit(BulkSubmission(spec=SPEC, items=items, owner=self.owner, max_owned=3))
        spec = dataclasses.replace(SPEC, max_queued=4)
        room = admission.reserve_places(Terms(spec=spec), [Job().pk for _ in items])
        with self.assertRaisesRegex(errors.InvalidInput, "at most 4 fit in the queue"), room:
            pass
        self.assertEqual(Job.objects.count(), 0)


class BulkTests(TransactionTestCase):
    def test_an_input_of_too_many_texts_is_refused_as_alone(self) -> None:
        inputs = {"source_sentence": "x", "sentences": ["y"] * 5}
        spec = dataclasses.replace(SPEC, task="sentence-similarity", max_batch_size=1)
        with patch.object(request_validation, "MAX_ROWS", 4):
            with self.assertRaises(errors.InvalidInput) as alone:
                jobs.submit(Submission(spec=spec, inputs=inputs))
            with self.assertRaisesRegex(errors.InvalidInput, alone.exception.message):
                bulk.submit(BulkSubmission(spec=spec, items=[BulkItem(inputs=inputs)]))

    def test_rows_are_prepared_before_the_transaction(self) -> None:
        within: list[bool] = []
        prepare = job_rows.convert_to_db

        def note(*arguments: Any) -> Any:
            within.append(connection.in_atomic_block)
            return prepare(*arguments)

        with patch.object(job_rows, "convert_to_db", note):
            bulk.submit(BulkSubmission(spec=SPEC, items=[BulkItem(inputs="x")] * 2))
        self.assertEqual(set(within), {False})


class LineTests(TransactionTestCase):
    def setUp(self) -> None:
        patience.lend(self)

    def line(self) -> queue_counter.QueueCounter:
        return queue_counter.QueueCounter(lambda: Job.objects.filter(status=Status.QUEUED))

    def test_a_long_line_that_is_full_is_not_counted_for_every_refusal(self) -> None:
        Job.objects.bulk_create(Job(model=MODEL, inputs="x") for _ in range(60))
        line = self.line()
        stopped = patch.object(queue_counter, "time", Mock(monotonic=lambda: 0.0))
        with stopped, patch.object(queue_counter, "EXACT", 50), CaptureQueriesContext(connection) as queries:
            self.assertEqual([line.admit_jobs([Job().pk], 60) for _ in range(5)], [False] * 5)
        self.assertEqual((len(queries), line.waiting), (1, 60))

    def test_a_slow_count_neither_refuses_nor_holds_for_long(self) -> None:
        now, counts = [0.0], [60, 0, 55]

        def count(jobs: Any) -> int:
            now[0] += 5.0
            return counts.pop(0)

        slow = patch.object(QuerySet, "count", count)
        with (
            patch.object(queue_counter, "EXACT", 50),
            slow,
            patch.object(queue_counter, "time", Mock(monotonic=lambda: now[0])),
        ):
            line = self.line()
            self.assertFalse(line.admit_jobs([Job().pk], 60))
            now[0] += 1.0
            self.assertTrue(line.admit_jobs([Job().pk], 60), "others were finished meanwhile")
            now[0] += 11.0
            self.assertTrue(line.admit_jobs([Job().pk], 60))
        self.assertEqual((counts, line.waiting), ([], 57))

    def test_those_who_come_during_a_count_that_fails_fail_with_it(self) -> None:
        counting, go_on = threading.Event(), threading.Event()
        counts = []

        def away() -> QuerySet[Job]:
            counts.append(1)
            counting.set()
            go_on.wait(PATIENCE_S)
            raise OperationalError("away")

        line = queue_counter.QueueCounter(away)
        give_back = patch.object(store_connections, "release_connection")
        with give_back as waiting, ThreadPoolExecutor(4) as pool:
            first = pool.submit(line.admit_jobs, [Job().pk], 3)
            self.assertTrue(counting.wait(PATIENCE_S))
            others = [pool.submit(line.admit_jobs, [Job().pk], 3) for _ in range(3)]
            eventually(lambda: waiting.call_count == 3, "they wait")
            go_on.set()
            self.assertIsInstance(first.exception(), OperationalError)
            for other in others:
                self.assertIsInstance(other.exception(), errors.StoreUnavailable)
        self.assertEqual(len(counts), 1)

    def test_a_request_with_no_time_left_fails_alone(self) -> None:
        counting, go_on = threading.Event(), threading.Event()

        def away_at_first() -> QuerySet[Job]:
            if not counting.is_set():
                counting.set()
                go_on.wait(PATIENCE_S)
                raise OperationalError("spent")
            return Job.objects.none()

        def enter(spent_s: float) -> bool:
            with budget.request_budget():
                waited = budget.counted_wait()
                with waited:
                    waited.began_at -= spent_s
                return line.admit_jobs([Job().pk], 3)

        line = queue_counter.QueueCounter(away_at_first)
        limit = patch.dict(os.environ, DATABASE_ANSWER_S=str(PATIENCE_S))
        with limit, patch.object(store_connections, "release_connection") as waiting, ThreadPoolExecutor(4) as pool:
            spent = pool.submit(enter, 2 * PATIENCE_S)
            self.assertTrue(counting.wait(PATIENCE_S))
            fresh = [pool.submit(enter, 0.0) for _ in range(3)]
            eventually(lambda: waiting.call_count == 3, "they wait")
            go_on.set()
            self.assertIsInstance(spent.exception(), OperationalError)
            self.assertEqual([each.result() for each in fresh], [True] * 3)
