import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import redis
from django.db import IntegrityError, OperationalError, connection, transaction
from django.db.models import QuerySet
from django.test import TransactionTestCase
from django.utils import timezone

from inference import errors
from inference.broker import address, publisher, redis_client
from inference.broker.circuit_breaker import CircuitBreaker
from inference.models import Job
from inference.store import connections, job_messages, job_rows
from inference.store.job_messages import make_message, send_messages
from inference.web_process import writer
from tests.conditions import PATIENCE_S, eventually
from tests.inference.submission import patience
from tests.messages import messages_for

MODEL = "embeddings"


def new_job(**values: Any) -> Job:
    """Make a notice of now: what was to be sent long ago would be sent again."""
    return Job(**{"model": MODEL, "inputs": "text", "published_at": timezone.now(), **values})


class StateError(Exception):
    """What the database's driver raises, with its SQLSTATE, if it has one."""

    def __init__(self, sqlstate: str | None) -> None:
        self.sqlstate = sqlstate


class WriterTests(TransactionTestCase):
    def setUp(self) -> None:
        self.writer = writer.Writer()
        patience.lend(self)

    def accept_together(self, jobs: list[Job]) -> list[Exception | None]:
        """Submit from many threads at once; what each of them got."""
        results: list[Exception | None] = [None] * len(jobs)

        def accept(index: int, job: Job) -> None:
            try:
                self.writer.write_job(job)
            except Exception as error:
                results[index] = error

        threads = [threading.Thread(target=accept, args=pair) for pair in enumerate(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def test_jobs_that_arrive_together_are_all_written_and_sent(self) -> None:
        jobs = [new_job(inputs=f"text {index}", parameters={"k": index}) for index in range(20)]
        self.assertEqual(self.accept_together(jobs), [None] * 20)
        stored = {job.pk: job for job in Job.objects.all()}
        for job in jobs:
            self.assertFalse(job._state.adding)
            self.assertEqual((stored[job.pk].inputs, stored[job.pk].parameters), (job.inputs, job.parameters))
        eventually(lambda: all(messages_for(job) == 1 for job in jobs), "their messages follow the rows")

    def test_a_job_for_which_no_thread_can_be_started_is_not_stored_with_the_next(self) -> None:
        with patch.object(threading.Thread, "start", side_effect=RuntimeError), self.assertRaises(RuntimeError):
            self.writer.write_job(new_job(inputs="refused"))
        self.writer.write_job(new_job(inputs="the next"))
        self.assertEqual([job.inputs for job in Job.objects.all()], ["the next"])

    def test_a_row_that_cannot_be_written_keeps_no_other_out(self) -> None:
        results = self.accept_together([new_job(idempotency_key="1:same") for _ in range(5)] + [new_job()])
        self.assertEqual(sum(isinstance(result, IntegrityError) for result in results), 4)
        self.assertEqual(Job.objects.count(), 2)

    def test_a_database_that_is_away_refuses_with_a_retryable_error_and_the_next_job_is_accepted(self) -> None:
        with patch.object(writer, "insert_group", side_effect=OperationalError("away")):
            (error,) = self.accept_together([new_job()])
        assert isinstance(error, errors.StoreUnavailable)
        self.assertTrue(error.retryable)
        self.assertGreater(error.retry_after_s or 0, 0)
        self.assertEqual(self.accept_together([new_job()]), [None])

    def test_nothing_was_stored_is_said_where_the_database_refused_and_not_where_it_was_cut_off(self) -> None:
        for state in (None, "08006", "57P01", "40P01", "53100", "57014"):
            cut_off = connection.vendor == "postgresql" and (state is None or state.startswith(writer.CUT_OFF))
            error = OperationalError("away")
            error.__cause__ = StateError(state)
            with self.subTest(sqlstate=state):
                self.assert_refused(patch.object(writer, "insert_group", side_effect=error), stored_perhaps=cut_off)

    def test_nothing_was_stored_is_said_where_no_connection_could_be_made(self) -> None:
        self.assert_refused(
            patch.object(connections, "close_stale_connection", side_effect=OperationalError("away")),
            stored_perhaps=False,
        )

    def assert_refused(self, away: Any, *, stored_perhaps: bool) -> None:
        job = new_job()
        with away:
            (error,) = self.accept_together([job])
        assert isinstance(error, errors.StoreUnavailable)
        self.assertEqual(error.job_id, job.id if stored_perhaps else None)
        self.assertRegex(error.message, "may have stored" if stored_perhaps else "nothing was stored")

    def test_a_row_that_the_database_cannot_take_is_one_caller_s_error(self) -> None:
        results = self.accept_together([new_job(), new_job(length=2**70), new_job()])
        self.assertIsNotNone(results[1])
        self.assertEqual((results[0], results[2], Job.objects.count()), (None, None, 2))

    def test_nothing_was_stored_is_said_only_of_what_was_withdrawn_before_it_was_begun(self) -> None:
        with self.held() as go_on:
            first = self.writer.enqueue_job(new_job())
            eventually(lambda: not self.writer.pending, "the first is being written")
            second = self.writer.enqueue_job(new_job())
            with self.assertRaises(errors.StoreUnavailable) as perhaps:
                self.writer.wait_for_write(first, 0.0)
            with self.assertRaisesRegex(errors.StoreUnavailable, "nothing was stored") as certain:
                self.writer.wait_for_write(second, 0.0)
            go_on.set()
            self.writer.wait_for_write(first, PATIENCE_S)
            self.writer.write_job(new_job())
        self.assertEqual((perhaps.exception.job_id, certain.exception.job_id), (first.job.id, None))
        self.assertIn(str(first.job.id), perhaps.exception.message)
        self.assertTrue(Job.objects.filter(pk=first.job.pk).exists())
        self.assertFalse(Job.objects.filter(pk=second.job.pk).exists())

    def test_what_waited_for_a_write_that_failed_is_refused_with_it(self) -> None:
        with self.held(OperationalError("away")) as go_on:
            offered = [self.writer.enqueue_job(new_job())]
            eventually(lambda: not self.writer.pending, "the first is being written")
            offered += [self.writer.enqueue_job(new_job()) for _ in range(3)]
            go_on.set()
            for submission in offered[1:]:
                with self.assertRaisesRegex(errors.StoreUnavailable, "nothing was stored"):
                    self.writer.wait_for_write(submission, PATIENCE_S)
        self.assertEqual(Job.objects.count(), 0)

    @contextlib.contextmanager
    def held(self, error: Exception | None = None) -> Iterator[threading.Event]:
        """Nothing is inserted before the event is set; then it is, or `error` is raised."""
        go_on, insert = threading.Event(), writer.insert_group

        def wait_and_insert(group: Sequence[Any]) -> None:
            go_on.wait(PATIENCE_S)
            if error:
                raise error
            insert(group)

        with patch.object(writer, "insert_group", wait_and_insert):
            try:
                yield go_on
            finally:
                go_on.set()

    def test_only_what_the_broker_refused_is_marked_as_not_sent(self) -> None:
        messages = [make_message(new_job(model=model)) for model in (MODEL, "refused")]
        for message in messages:
            job_rows.insert_jobs([job_rows.convert_job_to_row(new_job(id=message.job_id, model=message.model))])
        client, key = redis_client.get_client(), address.make_queue_key(messages[1].queue, messages[1].priority)
        self.addCleanup(client.delete, key)
        client.set(key, "no list")
        send_messages(messages)
        self.assertEqual(
            [str(pk) for pk in Job.objects.filter(published_at=None).values_list("pk", flat=True)], [messages[1].job_id]
        )

    def test_what_is_stored_is_accepted_though_it_can_be_neither_sent_nor_marked(self) -> None:
        job = new_job()
        unsent = patch.object(publisher, "publish_messages", side_effect=errors.BrokerUnavailable("away"))
        unmarked = patch.object(QuerySet, "update", side_effect=OperationalError("away"))
        with unsent, unmarked as update, self.assertNoLogs(writer.logger, "ERROR"):
            self.writer.write_job(job)
            eventually(lambda: update.called, "it cannot be marked")
            self.writer.write_job(new_job())
        self.assertEqual(Job.objects.count(), 2)

    def test_one_submission_and_not_each_says_that_the_broker_is_away(self) -> None:
        broker = CircuitBreaker(redis.ConnectionError, slots=1, rest_s=3600)

        def fail_to_publish(messages: object) -> None:
            with broker.guard_call():
                raise redis.ConnectionError

        with (
            patch.object(publisher, "publish_messages", fail_to_publish),
            self.assertLogs(job_messages.logger, "WARNING") as said,
        ):
            for _ in range(5):
                send_messages([make_message(new_job())])
        self.assertEqual(len(said.output), 1)

    def test_a_group_is_bounded_in_bytes(self) -> None:
        sizes: list[int] = []
        insert = writer.insert_group

        def count(group: Sequence[Any]) -> None:
            sizes.append(sum(row.size for row in group))
            insert(group)

        with patch.object(job_rows, "MOST_BYTES", 10_000), patch.object(writer, "insert_group", count):
            self.assertEqual(self.accept_together([new_job(inputs="x" * 4000) for _ in range(12)]), [None] * 12)
        self.assertLessEqual(max(sizes), 10_000)

    def test_a_submitting_thread_opens_no_database_connection(self) -> None:
        opened: list[Any] = []

        def accept() -> None:
            self.writer.write_job(new_job())
            opened.append(connection.connection)

        thread = threading.Thread(target=accept)
        thread.start()
        thread.join()
        self.assertEqual(opened, [None])

    def test_a_job_in_the_callers_transaction_is_sent_when_it_commits(self) -> None:
        job = new_job()
        with transaction.atomic():
            self.writer.write_job(job)
            self.assertEqual(messages_for(job), 0)
        self.assertEqual(messages_for(job), 1)

    def test_a_job_of_a_rolled_back_transaction_is_never_sent(self) -> None:
        job = new_job()
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            self.writer.write_job(job)
            raise ZeroDivisionError
        self.assertEqual((Job.objects.count(), messages_for(job)), (0, 0))
