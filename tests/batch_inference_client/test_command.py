"""The command as a process of its own, and a map that is killed and goes on."""

from __future__ import annotations

import contextlib
import io
import json
import signal
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
from tests import echo, words
from tests.batch_inference_client import resume
from tests.conditions import PATIENCE_S
from tests.e2e.case import StackCase
from tests.ports import HOST, free_port
from tools.launcher import programs

STORY = """
[story]
engine = "tests.words:WordsEngine"
task = "text-generation"
"""
COMPLETIONS = "/v1/completions"


class CommandCase(StackCase):
    options: Any = {"models": resume.MODELS + STORY}

    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def call(self, *arguments: str, given: str = "", url: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.line(*arguments, url=url),
            cwd=resume.ROOT,
            input=given,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def line(self, *arguments: str, url: str = "") -> list[str]:
        url = url or f"http://{HOST}:{self.stack.port}"
        return [sys.executable, "-m", "batch_inference_client", "--url", url, *arguments]


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
            "Models: echo, story.": self.call("run", "ekko", "x"),
            "Name the service with --url": self.call("status", "--patience", "0", url=away),
            "Leave --json out": self.call("run", "echo", "text", "--json"),
            "no id": self.call("cancel", "../x"),
            "job_not_found": self.call("status", str(uuid4())),
            "must be an object": self.call("run", "echo", "x", "--parameters", "[]"),
            "must be that of the service": self.call("status", url="localhost"),
            "Name the --endpoint": self.call("batch", __file__),
            "No such file": self.call("batch", "nowhere.jsonl", "--endpoint", COMPLETIONS),
            "endpoint: must be one of": self.call("batch", __file__, "--endpoint", "/v1/poems"),
            "No batch found": self.call("batch", f"batch_{uuid4().hex}"),
        }.items():
            with self.subTest(message):
                self.assertIn(message, done.stderr)
                self.assertNotIn("Traceback", done.stderr)
                self.assertNotEqual(done.returncode, 0)


class BatchTests(CommandCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.stack.start(programs.make_batch_runner())

    def setUp(self) -> None:
        super().setUp()
        self.source, self.output, self.errors = (self.folder / f"{name}.jsonl" for name in ("in", "out", "errors"))
        self.files = ("--output", str(self.output), "--errors", str(self.errors))

    def write(self, **prompts: Any) -> None:
        lines = [
            {"custom_id": name, "method": "POST", "url": COMPLETIONS, "body": {"model": "story", "prompt": prompt}}
            for name, prompt in prompts.items()
        ]
        self.source.write_text("\n".join(map(json.dumps, lines)))

    def test_a_file_is_answered_into_one_file_or_two(self) -> None:
        self.write(a="once", b=7, c="upon")
        done = self.call("batch", str(self.source), "--endpoint", COMPLETIONS, *self.files)
        answers, errors = (list(map(json.loads, file.read_text().splitlines())) for file in (self.output, self.errors))
        self.assertEqual([answer["custom_id"] for answer in answers], ["a", "c"])
        self.assertEqual(
            answers[0]["response"]["body"]["choices"][0]["text"], words.expected("once", 16)[0]["generated_text"]
        )
        self.assertEqual([error["custom_id"] for error in errors], ["b"])
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("2 of 3 lines have an answer", done.stderr)
        batch_id = done.stderr.split()[3].rstrip(".")
        again = self.call("batch", batch_id)
        self.assertEqual(self.call("batch", batch_id, "--so-far").stdout, self.output.read_text())
        self.assertEqual(again.stdout, self.output.read_text() + self.errors.read_text())
        self.assertEqual(json.loads(self.call("status", batch_id).stdout)["status"], "completed")
        self.assertEqual(self.call("cancel", batch_id).stdout, "completed\n")

    def test_a_batch_goes_on_after_its_command_is_interrupted(self) -> None:
        self.hold()
        self.write(a="held")
        arguments = self.line("batch", str(self.source), "--endpoint", COMPLETIONS, *self.files)
        with subprocess.Popen(arguments, cwd=resume.ROOT, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr
            batch_id = process.stderr.readline().split()[3].rstrip(".")
            process.send_signal(signal.SIGINT)
            received = process.stderr.read()
        self.assertEqual(process.returncode, command.INTERRUPTED)
        self.assertIn(f"the same command with {batch_id} in place of the file", received)
        self.stack.release()
        done = self.call("batch", batch_id, *self.files)
        self.assertEqual((done.returncode, self.errors.read_text()), (0, ""))
        self.assertEqual(json.loads(self.output.read_text())["custom_id"], "a")

    def test_a_file_that_is_refused_is_told_by_its_lines(self) -> None:
        self.write(a="once")
        with self.source.open("a") as file:
            file.write("\n{")
        self.output.write_text("of yesterday")
        self.errors.write_text("of yesterday")
        done = self.call("batch", str(self.source), "--endpoint", COMPLETIONS, *self.files)
        self.assertEqual(done.returncode, 1)
        self.assertIn("line 2: ", done.stderr)
        self.assertEqual((self.output.read_text(), self.errors.read_text()), ("of yesterday", "of yesterday"))

    def test_a_file_keeps_its_answers_where_the_batch_has_none(self) -> None:
        self.write(a=7)
        self.output.write_text("of yesterday")
        done = self.call("batch", str(self.source), "--endpoint", COMPLETIONS, *self.files)
        self.assertIn("0 of 1 lines have an answer", done.stderr)
        self.assertEqual(self.output.read_text(), "of yesterday")
        self.assertEqual(json.loads(self.errors.read_text())["custom_id"], "a")

    def test_answers_and_errors_go_to_two_files(self) -> None:
        self.write(a="once")
        self.output.write_text("of yesterday")
        files = ("--output", str(self.output), "--errors", f"{self.folder}/./{self.output.name}")
        done = self.call("batch", str(self.source), "--endpoint", COMPLETIONS, *files)
        self.assertEqual((done.returncode, self.output.read_text()), (1, "of yesterday"))
        self.assertIn("name one file", done.stderr)

    def test_the_answers_so_far_of_a_file_come_with_the_id_of_its_batch(self) -> None:
        self.hold()
        self.write(a="held")
        self.output.write_text("of yesterday")
        done = self.call("batch", str(self.source), "--endpoint", COMPLETIONS, "--so-far", *self.files)
        self.assertEqual((done.returncode, self.output.read_text()), (0, "of yesterday"))
        batch_id = done.stderr.split()[3].rstrip(".")
        self.assertEqual(json.loads(self.call("status", batch_id).stdout)["id"], batch_id)
        self.stack.release()


class KeyTests(CommandCase):
    options = {"models": resume.MODELS, "workers": 0, "environment": {"API_KEY_REQUIRED": "1"}}

    def test_a_call_without_a_key_says_where_to_put_it(self) -> None:
        file = self.folder / "large.jsonl"
        with file.open("wb") as large:
            large.truncate(32 * 1024 * 1024)  # more than what is on its way when the service refuses it
        for call in (("run", "echo", "x"), ("batch", str(file), "--endpoint", COMPLETIONS)):
            with self.subTest(call):
                self.assertIn("INFERENCE_API_KEY", self.call(*call).stderr)


class StatusTests(TestCase):
    def test_it_says_why_the_service_is_not_ready(self) -> None:
        for ready, code in (({"ready": True, "reasons": []}, 0), ({"ready": False, "reasons": ["no worker"]}, 1)):
            client, stderr = Mock(**{"ready.return_value": ready, "models.return_value": []}), io.StringIO()
            with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(command.show_status(client, Namespace(id=None)), code)
            self.assertEqual(stderr.getvalue(), "not ready: no worker\n" if code else "")
