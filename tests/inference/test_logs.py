"""A JSON line has the ids that are bound and those that its text names, and is JSON whatever is in it."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from typing import Any
from unittest import TestCase
from unittest.mock import patch

from django.conf import settings

from inference import logs
from inference.worker import heartbeat


def line(text: str, *arguments: Any, **more: Any) -> dict[str, Any]:
    record = logging.LogRecord("a.b", logging.INFO, "", 0, text, arguments, more.get("exc_info"))
    found: dict[str, Any] = json.loads(logs.JsonFormatter().format(record))
    return found


class LineTests(TestCase):
    def tearDown(self) -> None:
        logs.begin()

    def test_what_the_text_names_is_a_field(self) -> None:
        found = line("batch=%s %d%% %5.1f jobs=%d ms=%.1f", "b", 50, 1.0, 3, 0.25)
        self.assertEqual(found["message"], "batch=b 50%   1.0 jobs=3 ms=0.2")
        self.assertEqual({name: found[name] for name in ("batch", "jobs", "ms")}, {"batch": "b", "jobs": 3, "ms": 0.25})

    def test_what_is_bound_is_on_each_line_of_the_thread_until_it_ends(self) -> None:
        logs.begin(request_id="r")
        logs.note(job="j")
        with logs.about(batch="b"):
            self.assertLessEqual({"request_id": "r", "job": "j", "batch": "b"}.items(), line("x").items())
        self.assertNotIn("batch", line("x"))
        seen: list[dict[str, Any]] = []
        other = threading.Thread(target=lambda: seen.append(line("x")))
        other.start()
        other.join()
        self.assertNotIn("job", seen[0])
        logs.begin(request_id="s")
        self.assertNotIn("job", line("x"))

    def test_what_the_line_names_goes_before_what_is_bound(self) -> None:
        with logs.about(job="bound"):
            self.assertEqual(line("job=%s", "named")["job"], "named")

    def test_what_a_chore_notes_is_over_with_it(self) -> None:
        self.assertTrue(heartbeat.succeeds(lambda: logs.note(job="j"), "node"))
        self.assertNotIn("job", line("x"))

    def test_it_is_json_whatever_it_says(self) -> None:
        for value in (float("nan"), "a\ud800\n\x00", object(), None):
            self.assertIn("value", line("value=%s", value))
        self.assertEqual(line("time=%s level=%s", "never", "high")["level"], "INFO")
        self.assertEqual(line("%(a)s", {"a": 1})["message"], "1")

    def test_an_exception_is_in_its_line(self) -> None:
        try:
            raise ValueError("no")
        except ValueError:
            found = line("failed", exc_info=sys.exc_info())
        self.assertIn("ValueError: no", found["exception"])

    def test_what_is_no_json_is_wrapped(self) -> None:
        for text in ("", "plain", '{"time": "cut of', logs.line_of("a", "b")):
            self.assertEqual(json.loads(logs.wrapped("web", text))["program"], "web")

    def test_texts_that_may_quote_an_input_are_left_out_of_json_only(self) -> None:
        self.assertEqual(logs.private("input"), "input")
        with patch.object(logs, "IS_JSON", True):
            self.assertNotIn("input", str(logs.private("input")))


SCRIPT = """
import logging, threading, warnings
import django
django.setup()
warnings.warn("a warning")
threading.Thread(target=lambda: 1 / 0, name="t").start()
logging.getLogger("transformers").warning("a library's")
1 / 0
"""


class ProgramTests(TestCase):
    def test_warnings_and_what_ends_a_thread_or_a_program_are_lines_too(self) -> None:
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=settings.BASE_DIR, check=False,
            env={"LOG_FORMAT": "json", "DJANGO_SETTINGS_MODULE": "project.settings", "SECRET_KEY": "k"},
        )  # fmt: skip
        found = [json.loads(line) for line in run.stderr.splitlines()]
        self.assertEqual([line["logger"] for line in found].count("py.warnings"), 1)
        self.assertEqual(sum("ZeroDivisionError" in line.get("exception", "") for line in found), 2)
        self.assertIn("a library's", [line["message"] for line in found])
