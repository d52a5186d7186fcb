"""The command as a process of its own, and a map that is killed and goes on."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest import TestCase
from unittest.mock import Mock
from uuid import uuid4

from batch_inference_client import command
from tests import echo
from tests.batch_inference_client import resume
from tests.conditions import PATIENCE_S
from tests.e2e.case import StackCase
from tests.ports import HOST, free_port


class CommandCase(StackCase):
    options: Any = {"models": resume.MODELS}

    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def call(self, *arguments: str, given: str = "", url: str = "") -> subprocess.CompletedProcess[str]:
        url = url or f"http://{HOST}:{self.stack.port}"
        return subprocess.run(
            [sys.executable, "-m", "batch_inference_client", "--url", url, *arguments],
            cwd=resume.ROOT, input=given, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip


class CommandTests(CommandCase):
    def test_run_prints_the_output(self) -> None:
        self.assertEqual(json.loads(self.call("run", "echo", "a text").stdout), echo.expected("a text"))
        output = self.call("run", "echo", '["a", "b"]', "--json").stdout
        self.assertEqual(json.loads(output), [echo.expected("a"), echo.expected("b")])

    def test_map_answers_every_line_in_its_place(self) -> None:
        lines = ['"a"', '{"inputs": "b"}', "", "{broken", "null", '{"imputs": 1}', '["c", "d"]']
        done = self.call("map", "echo", given="\n".join(lines))
        answers = list(map(json.loads, done.stdout.splitlines()))
        self.assertEqual([answer.get("output") for answer in answers[:2]], [echo.expected("a"), echo.expected("b")])
        self.assertEqual([answer["error"]["code"] for answer in answers[2:5]], ["invalid_json"] + 2 * ["invalid_input"])
        self.assertEqual(answers[5]["output"], [echo.expected("c"), echo.expected("d")])
        self.assertEqual((done.returncode, len(answers)), (1, 6))
        self.assertIn("3 lines have an error", done.stderr)

    def test_map_goes_on_in_a_file_with_its_name_only(self) -> None:
        answers, name = self.folder / "answers.jsonl", str(uuid4())
        given = "".join(f'"{number}"\n' for number in range(5))
        self.assertEqual(self.call("map", "echo", "--output", str(answers), "--name", name, given=given).returncode, 0)
        whole = answers.read_bytes()
        answers.write_bytes(b"".join(whole.splitlines(keepends=True)[:3]) + b'{"outp')
        refused = self.call("map", "echo", "--output", str(answers), given=given)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("Give the --name of the run that wrote them", refused.stderr)
        self.assertEqual(self.call("map", "echo", "--output", str(answers), "--name", name, given=given).returncode, 0)
        self.assertEqual(answers.read_bytes(), whole)
        other = self.call("map", "echo", "--output", str(answers), "--name", name, given=given.replace("1", "7"))
        self.assertIn("are not those of the earlier run", other.stderr)

    def test_a_map_answers_each_line_once_in_order_after_its_program_and_worker_are_killed(self) -> None:
        resume.killed_and_resumed(self.stack, self.folder, 6000)
        self.stack.ready()

    def test_status_and_cancel(self) -> None:
        process = self.call("status")
        self.assertEqual((process.returncode, process.stdout.splitlines()[1].split()[0]), (0, "echo"))
        job = str(self.stack.submit("x"))
        self.assertEqual(json.loads(self.call("status", job).stdout)["id"], job)
        self.assertIn(self.call("cancel", job).stdout.strip(), ("cancelled", "succeeded"))
        bulk = self.stack.post("/v1/jobs/bulk", {"model": "echo", "inputs": ["a"]}).json["id"]
        self.assertEqual(json.loads(self.call("status", bulk).stdout)["id"], bulk)
        self.assertIn("cancelled", self.call("cancel", bulk).stdout)

    def test_errors_say_what_to_do(self) -> None:
        away = f"http://{HOST}:{free_port()}"
        for message, done in {
            "Models: echo.": self.call("run", "ekko", "x"),
            "Name the service with --url": self.call("status", "--patience", "0", url=away),
            "Leave --json out": self.call("run", "echo", "text", "--json"),
            "no id": self.call("cancel", "../x"),
            "job_not_found": self.call("status", str(uuid4())),
            "must be an object": self.call("run", "echo", "x", "--parameters", "[]"),
            "must be that of the service": self.call("status", url="localhost"),
        }.items():
            with self.subTest(message):
                self.assertIn(message, done.stderr)
                self.assertNotIn("Traceback", done.stderr)
                self.assertNotEqual(done.returncode, 0)


class KeyTests(CommandCase):
    options = {"models": resume.MODELS, "workers": 0, "environment": {"API_KEY_REQUIRED": "1"}}

    def test_a_call_without_a_key_says_where_to_put_it(self) -> None:
        self.assertIn("INFERENCE_API_KEY", self.call("run", "echo", "x").stderr)


class StatusTests(TestCase):
    def test_it_says_why_the_service_is_not_ready(self) -> None:
        for ready, code in (({"ready": True, "reasons": []}, 0), ({"ready": False, "reasons": ["no worker"]}, 1)):
            client, stderr = Mock(**{"ready.return_value": ready, "models.return_value": []}), io.StringIO()
            with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(command.show_status(client, Namespace(id=None)), code)
            self.assertEqual(stderr.getvalue(), "not ready: no worker\n" if code else "")
