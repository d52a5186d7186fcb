"""`celery -A project worker`, as a user types it."""

import subprocess
import sys
from unittest import TestCase

from django.conf import settings


def worker(*options: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "celery", "-A", "project", "worker", *options],
        cwd=settings.BASE_DIR, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


class WorkerOptionsTests(TestCase):
    def test_help_explains_the_devices(self):
        answer = worker("--help")
        self.assertEqual(answer.returncode, 0)
        self.assertIn("--devices", answer.stdout)
        self.assertIn("cuda:0,cuda:1", answer.stdout)

    def test_what_breaks_batching_is_refused_with_a_reason(self):
        for options, reason in (
            (("-P", "threads"), "leave out -P/--pool"),
            (("--autoscale", "4,1"), "use -c N instead"),
            (("--devices", "gpu"), "use auto, cpu, or a list such as cuda:0,cuda:1"),
            (("--disable-prefetch",), "leaves nothing to batch"),
        ):
            with self.subTest(options):
                answer = worker(*options)
                self.assertNotEqual(answer.returncode, 0)
                self.assertIn(reason, answer.stderr)
