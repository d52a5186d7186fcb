"""The check of a GPU, on a stand-in: each case holds, and fails once its fault is put in."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
import unittest
from concurrent.futures import Executor
from pathlib import Path
from typing import Any
from unittest import TestCase
from unittest.mock import patch

from tests.gpu import command


def setUpModule() -> None:
    with patch.dict(os.environ, LOG_LEVEL="ERROR"):
        Check.template = unittest.enterModuleContext(command.start_template(is_cpu=True))


class Check(TestCase):
    template: Executor

    def run_check(self, *options: str) -> tuple[int, str, list[Any]]:
        """Return the exit status, the table and the results of a check on a stand-in."""
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as table:
            file = Path(folder, "results.json")
            status = command.main(["--stand-in", *options, "--json", str(file)], self.template)
            return status, table.getvalue(), json.loads(file.read_text())


class CasesTests(Check):
    def test_each_case_holds(self) -> None:
        _, _, results = self.run_check()
        self.assertEqual([result["name"] for result in results], list(command.CASES))
        for result in results:
            with self.subTest(result["name"]):
                self.assertTrue(result["passed"], result["seen"])


class FaultsTests(Check):
    def test_each_case_fails_once_its_fault_is_put_in(self) -> None:
        _, _, results = self.run_check(*(option for name in command.CASES for option in ("--broken", name)))
        self.assertEqual(len(results), len(command.CASES))
        for result in results:
            with self.subTest(result["name"]):
                self.assertFalse(result["passed"], result["seen"])
                self.assertNotRegex(result["seen"], "raised|its process ended")


class CommandTests(Check):
    def test_it_prints_a_table_writes_json_and_its_exit_code_says_whether_all_hold(self) -> None:
        options = ["--only", "environment", "--only", "timing"]
        for broken, code, passed in (([], 0, [True, True]), (["--broken", "timing"], 1, [True, False])):
            status, table, results = self.run_check(*options, *broken)
            self.assertEqual(status, code)
            self.assertEqual([result["passed"] for result in results], passed)
            self.assertIn(f"{sum(passed)} of 2 cases hold on a stand-in", table)

    def test_without_a_gpu_it_says_so_in_a_sentence(self) -> None:
        with (
            patch.dict(os.environ, CUDA_VISIBLE_DEVICES=""),
            contextlib.redirect_stdout(io.StringIO()) as shown,
            contextlib.redirect_stderr(io.StringIO()) as said,
        ):
            status = command.main([])
        self.assertEqual((status, shown.getvalue()), (command.NO_GPU, ""))
        self.assertRegex(
            said.getvalue(), r"\ANo GPU can be checked here, as CUDA_VISIBLE_DEVICES hides every GPU; .*\.\n\Z"
        )
