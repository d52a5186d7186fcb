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
from django.db import DataError, OperationalError

from inference.catalog.specs import CatalogError
from inference.errors import EngineError, InvalidInput, ModelUnavailable, StoreUnavailable
from inference.telemetry import exception_descriptions, logs
from inference.worker import chore_runner
from inference.worker.calls import ProcessLost


def line(text: str, *arguments: Any, **more: Any) -> dict[str, Any]:
    record = logging.LogRecord("a.b", logging.INFO, "", 0, text, arguments, more.get("exc_info"))
    found: dict[str, Any] = json.loads(logs.JsonFormatter().format(record))
    return found


class LineTests(TestCase):
    def tearDown(self) -> None:
        logs.replace_bound_ids()

    def test_what_the_text_names_is_a_field(self) -> None:
        found = line("batch=%s %d%% %5.1f jobs=%d ms=%.1f", "b", 50, 1.0, 3, 0.25)
        self.assertEqual(found["message"], "batch=b 50%   1.0 jobs=3 ms=0.2")
        self.assertEqual({name: found[name] for name in ("batch", "jobs", "ms")}, {"batch": "b", "jobs": 3, "ms": 0.25})

    def test_what_is_bound_is_on_each_line_of_the_thread_until_it_ends(self) -> None:
        logs.replace_bound_ids(request_id="r")
        logs.bind_more_ids(job="j")
        with logs.bind_ids(batch="b"):
            self.assertLessEqual({"request_id": "r", "job": "j", "batch": "b"}.items(), line("x").items())
        self.assertNotIn("batch", line("x"))
        seen: list[dict[str, Any]] = []
        other = threading.Thread(target=lambda: seen.append(line("x")))
        other.start()
        other.join()
        self.assertNotIn("job", seen[0])
        logs.replace_bound_ids(request_id="s")
        self.assertNotIn("job", line("x"))

    def test_what_the_line_names_goes_before_what_is_bound(self) -> None:
        with logs.bind_ids(job="bound"):
            self.assertEqual(line("job=%s", "named")["job"], "named")

    def test_what_a_chore_notes_is_over_with_it(self) -> None:
        self.assertTrue(chore_runner.run_chore(lambda: logs.bind_more_ids(job="j"), "node"))
        self.assertNotIn("job", line("x"))

    def test_it_is_json_whatever_it_says(self) -> None:
        for value in (float("nan"), "a\ud800\n\x00", object(), None):
            self.assertIn("value", line("value=%s", value))
        self.assertEqual(line("time=%s level=%s", "never", "high")["level"], "INFO")
        self.assertEqual(line("%(a)s", {"a": 1})["message"], "1")

    def test_of_an_exception_it_has_the_places_and_no_data(self) -> None:
        found = raised_line()["exception"]
        self.assertNotIn("marked-input", found)
        for part in ("in raised_line", "KeyError: …\n", "\nValueError: …"):
            self.assertIn(part, found)
        with patch.object(logs, "quotes", True):
            self.assertIn("ValueError: marked-input", raised_line()["exception"])

    def test_messages_that_quote_no_data_are_kept(self) -> None:
        for error in (
            ValueError("m"),
            UnicodeError("m"),
            InvalidInput("m"),
            EngineError("m"),
            DataError("m"),
            Lied("m"),
        ):
            self.assertEqual(exception_descriptions.describe_for_logs(error).partition(": ")[2], "…")
        known: tuple[Exception, ...] = (
            StoreUnavailable("m"), ModelUnavailable("m"), CatalogError("m"), TimeoutError("m"),
            OperationalError("m"), OSError(2, "m", "a/file"),
        )  # fmt: skip
        for plain in known:
            self.assertEqual(exception_descriptions.describe_for_logs(plain).partition(": ")[2], "m")
        self.assertTrue(exception_descriptions.describe_for_logs(ProcessLost(-9)).endswith("ended: signal 9 (SIGKILL)"))
        self.assertEqual(exception_descriptions.describe_for_logs(EOFError()), "EOFError: …")

    def test_of_a_model_s_own_code_it_has_the_places_first_and_bounded(self) -> None:
        def deep(left: int) -> str:
            return deep(left - 1) if left else json.loads("{")

        try:
            deep(900)
        except ValueError as error:
            found = exception_descriptions.format_places(error)
        own, others = found.index(", in deep\n"), found.index("json/__init__.py")
        self.assertLess(own, others)
        self.assertTrue(found.startswith(exception_descriptions.HEADING) and found.endswith("\nJSONDecodeError"), found)
        self.assertNotIn("Expecting", found)
        self.assertLess(len(found), exception_descriptions.MOST_TRACE)
        self.assertEqual(exception_descriptions.format_places(ValueError("never raised")), "")

    def test_an_exception_that_caused_itself_is_printed_once(self) -> None:
        error, other = ValueError(), KeyError()
        error.__cause__, other.__context__ = other, error
        self.assertEqual(exception_descriptions.format_exception(error, None), "KeyError: …\nValueError: …")

    def test_what_is_no_json_is_wrapped(self) -> None:
        for text in ("", "plain", '{"time": "cut of', logs.format_json_line("a", "b")):
            self.assertEqual(json.loads(logs.format_program_json_line("web", text))["program"], "web")

    def test_what_only_looks_like_a_line_of_json_is_wrapped_too(self) -> None:
        for text in ('{"time": soon}', '{"time": 1} {"time": 2}', '{"time": "\\x1b[2J"}'):
            self.assertEqual(json.loads(logs.format_program_json_line("worker", text))["message"], text)
        self.assertEqual(
            json.loads(logs.format_program_json_line("web", '{"time": 1, "message": "a"}'))["message"], "a"
        )

    def test_texts_that_may_quote_an_input_are_left_out_but_for_who_develops(self) -> None:
        self.assertNotIn("input", f"{logs.mask_model_text('input')} {logs.describe_error(ValueError('input'))}")
        with patch.object(logs, "quotes", True):
            self.assertEqual(
                (logs.mask_model_text("input"), logs.describe_error(KeyError("input"))), ("input", "KeyError('input')")
            )


class Lied(Exception):
    """Of a library."""

    __module__ = "apiary"


def raised_line() -> dict[str, Any]:
    data = "-".join(("marked", "input"))  # the line that raised is quoted
    try:
        try:
            raise KeyError(data)
        except KeyError:
            raise ValueError(data)  # noqa: B904 - while another is handled
    except ValueError:
        return line("failed", exc_info=sys.exc_info())


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
        found = [json.loads(line) for line in self.run_with("json").splitlines()]
        self.assertEqual([line["logger"] for line in found].count("py.warnings"), 1)
        self.assertEqual(sum("ZeroDivisionError: …" in line.get("exception", "") for line in found), 2)
        self.assertIn("a library's", [line["message"] for line in found])

    def test_in_plain_text_what_ends_a_thread_has_no_data_either(self) -> None:
        """What ends a command is read by who has typed it."""
        said = self.run_with("text")
        self.assertEqual((said.count("ZeroDivisionError: …"), said.count("division by zero")), (1, 1))

    def run_with(self, form: str) -> str:
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            capture_output=True,
            text=True,
            cwd=settings.BASE_DIR,
            check=False,
            env={"LOG_FORMAT": form, "DJANGO_SETTINGS_MODULE": "project.settings", "SECRET_KEY": "k"},
        )
        return run.stderr
