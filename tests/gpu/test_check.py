"""The check of a GPU, on a stand-in: each case holds, and fails once its fault is put in."""

import contextlib
import io
import json
import logging
import tempfile
from pathlib import Path
from unittest import TestCase

from tests.gpu import command
from tests.gpu.machine import StandIn


def setUpModule() -> None:
    logging.disable(logging.WARNING)


def tearDownModule() -> None:
    logging.disable(logging.NOTSET)


class CasesTests(TestCase):
    def test_each_case_holds(self) -> None:
        for name in command.CASES:
            with self.subTest(name):
                result = command.play(name, StandIn())
                self.assertTrue(result.passed, result.seen)


class FaultsTests(TestCase):
    def test_each_case_fails_once_its_fault_is_put_in(self) -> None:
        for name in command.CASES:
            with self.subTest(name):
                result = command.play(name, StandIn(broken=True))
                self.assertFalse(result.passed, result.seen)
                self.assertNotIn("raised", result.seen)


class CommandTests(TestCase):
    def test_it_prints_a_table_writes_json_and_its_exit_code_says_whether_all_hold(self) -> None:
        file = Path(self.enterContext(tempfile.TemporaryDirectory()), "results.json")
        options = ["--stand-in", "--only", "environment", "--only", "timing", "--json", str(file)]
        for broken, code, passed in (([], 0, [True, True]), (["--broken", "timing"], 1, [True, False])):
            table = io.StringIO()
            with contextlib.redirect_stdout(table):
                self.assertEqual(command.main([*options, *broken]), code)
            self.assertEqual([result["passed"] for result in json.loads(file.read_text())], passed)
            self.assertIn(f"{sum(passed)} of 2 cases hold on a stand-in", table.getvalue())
