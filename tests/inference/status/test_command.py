"""`manage.py status`: what the admin's first page says, for a terminal and for programs."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from subprocess import PIPE
from typing import Any
from unittest.mock import patch

from django.conf import settings
from django.core.management import call_command
from django.db import OperationalError, ProgrammingError, connection

from inference.models import Job, Status, Worker, WorkerState
from tests.inference.status.test_attention import AttentionCase, figure


@contextlib.contextmanager
def away(error: Exception) -> Iterator[None]:
    """The database; that of the tests stays open."""
    with patch.object(connection, "cursor", side_effect=error), patch.object(connection, "close"):
        yield


class TestCommand(AttentionCase):
    def run_command(self, **options: Any) -> tuple[str, int]:
        out = io.StringIO()
        try:
            call_command("status", stdout=out, **options)
        except SystemExit as end:
            return out.getvalue(), int(end.code or 0)
        return out.getvalue(), 0

    def test_it_shows_models_and_workers_when_all_is_well(self) -> None:
        text, code = self.run_command()
        self.assertEqual(code, 0)
        for fact in ("All is well.", "embeddings", "first@host", "ready"):
            self.assertIn(fact, text)

    def test_it_has_what_the_first_page_has_of_the_last_hour(self) -> None:
        Job.objects.create(model="embeddings", inputs="x", status=Status.RUNNING)
        figure(60, ended={"succeeded": 1200, "failed crashed": 2}, wait={"sum": 2.0, "in": {"40": 2}})
        figure(60, model="gone", ended={"failed lost": 7, "cancelled": 1})
        figure(7200, ended={"succeeded": 5})
        found = json.loads(self.run_command(json=True)[0])
        self.assertEqual(found["ended"], {"succeeded": 1200, "failed": 9, "cancelled": 1, "expired": 0})
        failed = [(row["model"], row["error"], row["jobs"]) for row in found["failures"]]
        self.assertEqual(failed, [("gone", "lost", 7), ("embeddings", "crashed", 2)])
        model = found["models"][0]
        self.assertEqual((model["running"], model["wait_s"], model["run_s"]), (1, 1.024, None))
        text, _ = self.run_command()
        for fact in ("1,200 succeeded, 9 failed, 1 cancelled, 0 expired", "crashed", "1.024"):
            self.assertIn(fact, text)

    def test_its_exit_status_is_1_when_something_is_wrong(self) -> None:
        Worker.objects.all().delete()
        text, code = self.run_command()
        self.assertEqual(code, 1)
        self.assertIn("! No worker serves embeddings", text)

    def test_what_follows_from_a_cause_is_indented_below_it(self) -> None:
        Worker.objects.update(state=WorkerState.GONE)
        text, _ = self.run_command()
        self.assertRegex(text, r"^! first@host has been gone since .*\n  Read its .*\n  - No worker serves embed")
        found = [(item["code"], item["follows"]) for item in json.loads(self.run_command(json=True)[0])["attention"]]
        self.assertEqual(found, [("WorkerGone", False), ("ModelUnserved", True)])

    def test_programs_read_the_same(self) -> None:
        Job.objects.create(model="gone", inputs="x", status=Status.QUEUED)
        found = json.loads(self.run_command(json=True)[0])
        self.assertEqual([row["model"] for row in found["models"]], ["embeddings", "gone"])
        self.assertEqual(found["attention"], [])
        with away(OperationalError("connection refused")):
            found = json.loads(self.run_command(json=True)[0])
        self.assertEqual([item["code"] for item in found["attention"]], ["DatabaseAway"])

    def test_of_a_database_that_is_away_nothing_is_said_that_only_it_knows(self) -> None:
        with away(OperationalError("connection refused")):
            text, code = self.run_command()
        self.assertEqual((code, "connection refused" in text, "No worker" in text), (1, True, False))

    def test_tables_that_are_not_there_are_to_be_migrated(self) -> None:
        for missing in (OperationalError("no such table: x"), ProgrammingError("relation x does not exist")):
            with away(missing):
                self.only("DatabaseAway", "migrate")

    def test_a_reader_that_closes_the_pipe_gets_no_traceback(self) -> None:
        for options in (("--watch", "0.2"), ("--watch", "inf", "--json")):
            command = [sys.executable, "manage.py", "status", *options]
            with subprocess.Popen(command, cwd=settings.BASE_DIR, stdout=PIPE, stderr=PIPE, text=True) as program:
                assert program.stdout
                assert program.stderr
                program.stdout.readline()
                program.stdout.close()
                if "inf" in options:
                    program.send_signal(signal.SIGINT)
                self.assertEqual(program.stderr.read(), "")
            self.assertEqual(program.returncode, 0)
