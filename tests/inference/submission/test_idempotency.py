"""Requests at once with one key: together they want room for what one of them stores."""

import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

from django.contrib.auth import get_user_model
from django.db import IntegrityError, connections
from django.test import TestCase, TransactionTestCase, override_settings

from inference import errors, process_resources
from inference.catalog.lookup import get_spec
from inference.models import Job, Worker, WorkerState
from inference.store import connections as store_connections
from inference.submission import bulk, idempotency, jobs
from inference.submission.submissions import BulkItem, BulkSubmission, Submission
from tests.conditions import PATIENCE_S
from tests.inference.submission import patience

CLIENTS = 10
SPEC = dataclasses.replace(get_spec("embeddings"), max_queued=1)
ONE = Submission(spec=SPEC, inputs="x", idempotency_key="k")
KEYED = Job(idempotency_key=idempotency.scope_key(None, "k"))


def signal_wait(waits: threading.Event) -> Callable[[float], Any]:
    """Return what replaces `release_connection_while_waiting`: it sets an event as a request is about to wait."""

    def release(limit_s: float) -> Any:
        waits.set()
        return store_connections.release_connection_while_waiting(limit_s)

    return release


class OnceTests(TransactionTestCase):
    def setUp(self) -> None:
        process_resources.current.queue_counters.clear()
        patience.lend(self)

    def at_once(self, call: Callable[[], object]) -> list[object]:
        """What each of many requests got."""
        barrier = threading.Barrier(CLIENTS)

        def client(_: int) -> object:
            barrier.wait(PATIENCE_S)
            try:
                return call()
            finally:
                connections.close_all()

        with ThreadPoolExecutor(CLIENTS) as pool:
            return list(pool.map(client, range(CLIENTS)))

    def test_who_waits_for_one_that_fails_tries_in_its_place(self) -> None:
        waits = threading.Event()
        others: list[Future[Job]] = []

        def fail() -> Job:
            others.append(pool.submit(jobs.submit, ONE))
            self.assertTrue(waits.wait(PATIENCE_S))
            raise errors.QueueFull("full")

        with (
            ThreadPoolExecutor(1) as pool,
            patch.object(idempotency, "release_connection_while_waiting", signal_wait(waits)),
        ):
            self.assertRaises(errors.QueueFull, idempotency.store_once, KEYED, fail)
            self.assertEqual(others[0].result().pk, Job.objects.get().pk)

    def test_a_request_that_comes_as_another_ends_gets_its_row(self) -> None:
        comes, ended = threading.Event(), threading.Event()
        first = threading.current_thread()
        others: list[Future[Job]] = []

        def new_future() -> Future[Job]:
            if threading.current_thread() is not first:  # it has seen that another one stores, and begins to
                comes.set()
                ended.wait(PATIENCE_S)
            return Future()

        def store() -> Job:
            others.append(pool.submit(jobs.submit, ONE))
            self.assertTrue(comes.wait(PATIENCE_S))
            return Job.objects.create(model=SPEC.name, inputs="x", idempotency_key=KEYED.idempotency_key)

        seams = patch.multiple(
            idempotency,
            release_connection_while_waiting=signal_wait(comes),
            Future=new_future,
            _require_same_body=lambda _, stored: stored,
        )
        with ThreadPoolExecutor(1) as pool, seams:
            stored = idempotency.store_once(KEYED, store)
            ended.set()
            self.assertEqual(others[0].result().pk, stored.pk)
            self.assertEqual(jobs.submit(ONE).pk, stored.pk)

    def test_each_has_a_row_of_its_own(self) -> None:
        """A request that streams its row lets the inputs of it go."""
        waits = threading.Event()
        others: list[Future[Job]] = []

        def find_stored(_: Job) -> None:
            others.append(pool.submit(jobs.submit, ONE))
            self.assertTrue(waits.wait(PATIENCE_S))

        with (
            ThreadPoolExecutor(1) as pool,
            patch.multiple(idempotency, release_connection_while_waiting=signal_wait(waits), find_stored=find_stored),
        ):
            first, second = jobs.submit(ONE), others[0].result()
        self.assertEqual(first, second)
        self.assertIsNot(first, second)

    def test_blocking_calls(self) -> None:
        Worker.objects.create(name="w", pid=1, state=WorkerState.READY, model_names=[SPEC.name])
        self.assertEqual(self.at_once(lambda: jobs.run(ONE, timeout_s=0).pk), [Job.objects.get().pk] * CLIENTS)

    @override_settings(MAX_LOW_QUEUED=2)
    def test_bulks(self) -> None:
        both = BulkSubmission(spec=SPEC, items=[BulkItem(inputs="x"), BulkItem(inputs="y")], idempotency_key="k")
        accepted = self.at_once(lambda: bulk.submit(both).jobs)
        stored = list(Job.objects.order_by("bulk_index").values_list("bulk_index", "pk"))
        self.assertEqual((accepted, len(stored)), ([stored] * CLIENTS, 2))

    def test_a_request_that_waits_in_vain_fails_and_stores_nothing(self) -> None:
        refused: list[Any] = []

        def store() -> Job:
            refused.append(pool.submit(jobs.submit, ONE).exception())
            return KEYED

        with patch.object(idempotency, "PATIENCE_S", 0.01), ThreadPoolExecutor(1) as pool:
            idempotency.store_once(KEYED, store)
        self.assertIsInstance(refused[0], errors.StoreUnavailable)
        self.assertIn("nothing was stored by this one", refused[0].message)
        self.assertEqual((refused[0].job_id, refused[0].retry_after_s, Job.objects.count()), (None, 1, 0))


class ExplanationTests(TestCase):
    """Why the database refused a row."""

    error = IntegrityError("refused")

    def test_an_owner_who_was_deleted_is_named_as_the_reason(self) -> None:
        owner = get_user_model().objects.create(username="ada")
        job = Job(owner_id=owner.pk)
        owner.delete()
        with self.assertRaises(errors.UnknownOwner) as raised:
            idempotency.resolve_conflict(job, self.error)
        self.assertIs(raised.exception.__cause__, self.error)

    def test_what_has_another_reason_is_raised_as_it_is(self) -> None:
        owner = get_user_model().objects.create(username="ada")
        for job in (Job(owner_id=owner.pk), Job(), Job(idempotency_key="-:k")):
            self.assertRaisesMessage(IntegrityError, "refused", idempotency.resolve_conflict, job, self.error)

    def test_a_key_that_another_request_took_leads_to_its_row(self) -> None:
        stored = Job.objects.create(model="m", inputs="x", idempotency_key="-:k", idempotency_digest="1")
        same, other = (Job(idempotency_key="-:k", idempotency_digest=digest) for digest in "12")
        self.assertEqual(idempotency.resolve_conflict(same, self.error), stored)
        self.assertRaises(errors.IdempotencyMismatch, idempotency.resolve_conflict, other, self.error)
