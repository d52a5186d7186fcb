import contextlib
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock, patch
from uuid import UUID, uuid4

from django.db import connection
from django.test import TransactionTestCase
from django.test.utils import CaptureQueriesContext
from redis.exceptions import ConnectionError, NoPermissionError

from inference.broker import redis_client
from inference.models import Job, Status
from inference.store import job_rows, notices
from inference.streams.hub import StreamHub
from inference.web_process import finish_listener
from tests.conditions import PATIENCE_S, eventually


class ListenerTests(TransactionTestCase):
    def setUp(self) -> None:
        self.listener = finish_listener.Listener()
        self.job = Job.objects.create(model="echo", inputs="text")

    def without_polls(self) -> None:
        """Let nothing but a notice wake who waits."""
        self.enterContext(patch.object(self.listener, "_wake_all"))

    def finish(self) -> None:
        Job.objects.filter(pk=self.job.pk).update(status=Status.SUCCEEDED, output="done")

    def wait_in_thread(self) -> tuple[threading.Thread, list[Any]]:
        answers: list[Any] = []

        def wait() -> None:
            with self.listener.expect_finish(self.job.id) as waiter:
                answers.append(waiter.wait(PATIENCE_S))

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: len(self.listener) == 1)
        return thread, answers

    def notify(self, ids: list[UUID], answers: list[Any]) -> None:
        self.notify_until(lambda: bool(answers), ids)

    def notify_until(self, condition: Callable[[], bool], ids: list[UUID]) -> None:
        """Again and again: the listener may not have subscribed yet."""

        def publish_and_check() -> bool:
            notices.publish_finished_jobs(ids)
            return condition()

        eventually(publish_and_check, "the notice is heard")

    def test_a_notice_wakes_the_waiter_with_what_became_of_the_job(self) -> None:
        self.without_polls()
        thread, answers = self.wait_in_thread()
        self.finish()
        self.notify([self.job.id], answers)
        thread.join()
        self.assertEqual(answers[0]["output"], "done")

    def test_a_notice_wakes_a_wait_for_any_of_many_jobs(self) -> None:
        self.without_polls()
        with self.listener.expect_any_finish([uuid4(), self.job.id]) as hints:

            def publish_and_wait() -> set[UUID]:
                notices.publish_finished_jobs([self.job.id])
                return hints.wait(0.0)

            self.assertEqual(eventually(publish_and_wait, "the notice is heard"), {self.job.id})

    def test_a_missed_notice_is_found_by_the_slow_poll(self) -> None:
        self.enterContext(patch.object(finish_listener, "POLL_S", 0.1))
        thread, answers = self.wait_in_thread()
        self.finish()
        thread.join()
        self.assertEqual(answers[0]["output"], "done")

    def test_the_slow_poll_wakes_only_waits_with_a_finished_job_and_queries_once_for_all(self) -> None:
        self.enterContext(patch.object(finish_listener.Listener, "_ensure_thread"))
        poll = self.listener._wake_all  # noqa: SLF001 - in the place of the thread
        jobs = Job.objects.bulk_create(Job(model="echo", inputs="text") for _ in range(3))
        with contextlib.ExitStack() as stack:
            waiting = [stack.enter_context(self.listener.expect_any_finish([job.id, self.job.id])) for job in jobs]
            late = stack.enter_context(self.listener.expect_any_finish([uuid4()]))
            with CaptureQueriesContext(connection) as queries:
                poll()
            self.assertEqual((len(queries), [hints.wait(0.0) for hints in waiting]), (1, [set()] * 3))
            self.finish()
            poll()
            self.assertEqual([hints.wait(0.0) for hints in (*waiting, late)], [*[{self.job.id}] * 3, set()])

    def test_a_notice_of_an_unfinished_job_wakes_nobody(self) -> None:
        self.without_polls()
        thread, answers = self.wait_in_thread()
        with patch.object(job_rows, "read_outcomes", wraps=job_rows.read_outcomes) as read:
            self.notify_until(lambda: read.called, [self.job.id])
        self.finish()
        self.notify([self.job.id], answers)
        thread.join()
        self.assertEqual([answer["output"] for answer in answers], ["done"])

    def test_nothing_is_left_behind_after_a_wait(self) -> None:
        with self.listener.expect_finish(self.job.id) as waiter:
            self.assertEqual(len(self.listener), 1)
            self.assertIsNone(waiter.wait(0.0))
        self.assertEqual(len(self.listener), 0)
        self.assertEqual(self.listener.waiters, {})

    def test_nothing_is_left_behind_where_no_thread_can_be_started(self) -> None:
        out_of_threads = patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread"))
        live = StreamHub(self.listener)
        for wait in (self.listener.expect_finish, live.subscribe_to):
            with out_of_threads, self.assertRaises(RuntimeError), wait(self.job.id):
                pass
        self.assertEqual((len(self.listener), len(live)), (0, 0))

    def test_a_wait_may_fail_while_a_notice_wakes_it(self) -> None:
        """The writer's thread and the listener's meet."""
        waiter = finish_listener.Waiter()

        def fail_first() -> None:
            opened.side_effect = None
            waiter.fail(ValueError("perhaps stored"))
            closed.release()

        closed = waiter._closed  # noqa: SLF001 - threads switch between two looks at it
        with patch.object(waiter, "_closed", Mock(wraps=closed)) as lock:
            opened = lock.release
            opened.side_effect = fail_first
            waiter.wake({})
        self.assertRaises(ValueError, waiter.wait, PATIENCE_S)

    def test_a_malformed_notice_is_dropped(self) -> None:
        self.without_polls()
        thread, answers = self.wait_in_thread()
        redis_client.get_client().publish(notices.get_channel_name(), b"\xff not ids")
        self.finish()
        self.notify([uuid4(), self.job.id], answers)
        thread.join()
        self.assertEqual(answers[0]["status"], Status.SUCCEEDED)

    def test_a_redis_that_is_away_is_called_once_and_one_that_refuses_keeps_no_message(self) -> None:
        for error, calls, is_open in ((ConnectionError("away"), 1, True), (NoPermissionError("PUBLISH"), 3, False)):
            breaker, client = redis_client.make_breaker(), Mock(publish=Mock(side_effect=error))
            breaker.rest_s = PATIENCE_S
            away = patch.multiple(redis_client, get_client=lambda found=client: found, breaker=breaker)
            with self.subTest(error), away, self.assertLogs("inference.store.notices", "WARNING"):
                for _ in range(3):
                    notices.publish_finished_jobs([self.job.id])
            self.assertEqual((client.publish.call_count, breaker.is_open()), (calls, is_open))

    def test_a_waiting_request_holds_no_database_connection(self) -> None:
        held: list[Any] = []

        def wait() -> None:
            Job.objects.count()
            with self.listener.expect_finish(self.job.id) as waiter:
                waiter.wait(0.0)
                held.append(connection.connection)

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
        self.assertEqual(held, [None])
