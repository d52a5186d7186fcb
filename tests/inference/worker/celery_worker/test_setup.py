"""`celery -A project worker`, as a user types it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import TestCase
from unittest.mock import patch

import kombu
from celery.app.amqp import Queues
from django.conf import settings
from django.db import InterfaceError

from inference.catalog import reader
from inference.worker.celery_worker import setup
from inference.worker.celery_worker.task_pool import TaskPool
from inference.worker.replicas import devices
from tests.conditions import PATIENCE_S


def worker(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "celery", "-A", "project", "worker", *options],
        env={**os.environ, **environment},
        cwd=settings.BASE_DIR,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


class WorkerOptionsTests(TestCase):
    def test_help_explains_the_models_and_the_devices(self) -> None:
        answer = worker("--help")
        self.assertEqual(answer.returncode, 0)
        for part in ("--models", "embeddings,sentiment", "--devices", "cuda:0,cuda:1"):
            self.assertIn(part, answer.stdout)

    def test_what_breaks_batching_is_refused_with_a_reason(self) -> None:
        for options, reason in (
            (("-P", "threads"), "leave out -P/--pool"),
            (("--autoscale", "4,1"), "use -c N instead"),
            (("--devices", "gpu"), "use auto, cpu, or a list such as cuda:0,cuda:1"),
            (("--disable-prefetch",), "leaves nothing to batch"),
        ):
            with self.subTest(options):
                self.assert_refused(worker(*options), reason)

    def test_models_that_are_not_listed_are_refused_and_queues_in_their_place(self) -> None:
        for options, reason in (
            (("--models", "summary,topic"), "--models summary,topic: there is no model 'topic' in models.toml; did you"
             " mean topics?"),
            (("--models", ""), "there is no model '' in models.toml; known are summary, topics."),
            (("-Q", "inference.topics"), "-Q and -X do not choose models; use --models topics instead"),
            (("-X", "inference.topics"), "-Q and -X do not choose models; use --models summary instead"),
        ):  # fmt: skip
            with self.subTest(options):
                self.assert_refused(worker(*options, MODELS_FILE=self.models_file()), reason)

    def models_file(self) -> str:
        file = Path(self.enterContext(tempfile.TemporaryDirectory()), "models.toml")
        file.write_text("".join(f'[{name}]\nengine = "tests.echo:EchoEngine"\n' for name in ("summary", "topics")))
        return str(file)

    def assert_refused(self, answer: subprocess.CompletedProcess[str], reason: str) -> None:
        self.assertNotEqual(answer.returncode, 0)
        self.assertIn(reason, answer.stderr)

    def test_a_worker_that_cannot_be_prepared_ends_and_takes_no_message(self) -> None:
        for error, sentence in (
            (OSError("no such device"), "the worker does not start: OSError"),
            (InterfaceError("connection already closed"), "the database does not answer"),
        ):
            models = reader.load_catalog(settings.MODELS_FILE).values()
            queues = Queues({spec.queue: kombu.Queue(spec.queue) for spec in models})
            app = SimpleNamespace(amqp=SimpleNamespace(queues=queues), conf=SimpleNamespace(worker_concurrency=None))
            limits = {"max_tasks_per_child": None, "max_memory_per_child": None}
            with (
                self.subTest(error),
                patch.dict(os.environ),
                patch.object(setup, "refuse_what_breaks_batching"),
                patch.object(devices, "choose_devices", side_effect=error),
                patch.object(setup.logger, "exception"),
                self.assertRaises(SystemExit) as ended,
            ):
                setup.prepare_worker(SimpleNamespace(app=app, hostname="w", options={}, pool_cls=TaskPool, **limits))
            self.assertIn(sentence, str(ended.exception))
            self.assertFalse(queues.consume_from)
