"""The pool as Celery starts and stops it; its processes are in `tests/inference/worker/processes`."""

import os
import signal
from typing import Any
from unittest import TestCase
from unittest.mock import Mock, patch

from celery.exceptions import InvalidTaskError
from celery.worker import state
from kombu.asynchronous import Hub

from inference.worker.celery_worker.task_pool import TaskPool


class TaskPoolTests(TestCase):
    """Celery calls these methods of the pool."""

    def test_a_task_that_is_no_job_is_refused_with_the_way_to_run_it(self) -> None:
        with self.assertRaisesRegex(InvalidTaskError, "celery worker -Q QUEUES"):
            TaskPool(1).apply_async(str, ("text",))

    def test_what_it_runs_is_not_ended_for_one_job(self) -> None:
        TaskPool(1).terminate_job(os.getpid(), signal.SIGTERM)

    def test_a_cold_shutdown_between_the_beginning_of_a_warm_one_and_its_stop_ends_what_runs(self) -> None:
        """Celery does not terminate the pool then, and the worker would wait for its children for ever."""
        pool = TaskPool(1)
        replicas = Mock()
        pool.take_replicas(replicas)
        with patch.object(state, "should_terminate", True):
            pool.stop()  # within the handler
            pool.stop()
        replicas.join.assert_not_called()
        replicas.kill_children.assert_called_once_with()

    def test_celery_s_timers_run_until_it_has_stopped(self) -> None:
        pool, celery_loop, replicas = TaskPool(1), Mock(), Mock()
        pool.register_with_event_loop(celery_loop)
        pool.take_replicas(replicas)

        def join(loop: Hub, **options: Any) -> None:
            while not celery_loop.fire_timers.called:
                loop.run_once()

        replicas.join = join
        pool.stop()
        celery_loop.fire_timers.assert_called_once_with()

    def test_it_is_stopped_once_and_not_within_the_handler_of_a_cold_shutdown(self) -> None:
        pool = TaskPool(1)
        replicas = Mock()
        pool.take_replicas(replicas)
        with patch.object(state, "should_terminate", True):
            pool.stop()
            replicas.join.assert_not_called()
            pool.terminate()
        replicas.kill_children.assert_called_once_with()
        pool.stop()
        pool.terminate()
        replicas.kill_children.assert_called_once_with()
