"""Each file in examples/, as it stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlencode

from django.conf import settings
from django.test import SimpleTestCase

from inference.launcher.supervisor import Program
from tests.conditions import PATIENCE_S, eventually
from tests.e2e.case import StackCase
from tests.ports import HOST, free_port

EXAMPLES = settings.BASE_DIR / "examples"
FINNISH = "yksi omena päivässä pitää lääkärin loitolla"


class ExamplesTests(StackCase):
    options = {"models": (EXAMPLES / "models.toml").read_text(), "replicas": 1}

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.stack.port}"

    def script(self, name: str, *arguments: str) -> list[str]:
        """The lines that it prints."""
        command = [sys.executable, "-m", f"examples.{name}", self.url, *arguments]
        run = subprocess.run(
            command, cwd=settings.BASE_DIR, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        return run.stdout.splitlines()

    def test_a_plain_function_and_an_engine_are_models(self) -> None:
        for model, text, answer in (("words", "three short words", 3), ("language", FINNISH, "finnish")):
            self.assertEqual(self.stack.call(text, model=model).json, answer)

    def test_the_command_of_the_page_asks_a_model_of_these_in_a_terminal_of_its_own(self) -> None:
        (command,) = re.findall(r"`([^`]*manage\.py run [^`]*)`", (EXAMPLES / "README.md").read_text())
        run = subprocess.run(
            command.replace(".venv/bin/python", sys.executable), shell=True, cwd=settings.BASE_DIR, capture_output=True,
            text=True, timeout=PATIENCE_S, check=False,
            env={**os.environ, **self.stack.environment, "MODELS_FILE": str(settings.BASE_DIR / "models.toml")},
        )  # fmt: skip
        self.assertEqual((run.returncode, run.stdout), (0, '"english"\n'), run.stderr)

    def test_a_script_submits_first_and_waits_later(self) -> None:
        languages = [line.partition(":")[0] for line in self.script("futures")]
        self.assertEqual(languages, ["english", "finnish", "italian"])

    def test_a_script_prints_text_as_it_is_generated(self) -> None:
        (line,) = self.script("stream", "once")
        (output,) = self.stack.jobs.filter(model="babble").values_list("output", flat=True)
        self.assertEqual([{"generated_text": f"once{line}"}], output)
        self.assertEqual(len(line.split()), 30)

    def test_a_file_is_mapped_line_by_line_and_not_again_when_it_is_run_again(self) -> None:
        file = Path(self.stack.folder, "lines.txt")
        file.write_text("one\none two\none two three\n" * 50)
        before = self.stack.jobs.count()
        for _ in range(2):
            self.assertEqual(self.script("map_file", "words", str(file)), ["1", "2", "3"] * 50)
        self.assertEqual(self.stack.jobs.count() - before, 150)

    def test_a_view_of_another_project_answers_also_when_the_service_does_not(self) -> None:
        port = free_port()
        command = ("django", "runserver", str(port), "--noreload", "--settings", "examples.shop.settings")
        environment = {"INFERENCE_URL": self.url, "DJANGO_SETTINGS_MODULE": ""}
        self.stack.start(Program(name="shop", command=(sys.executable, "-m", *command), environment=environment))
        eventually(lambda: self.ask(port, FINNISH) == (200, {"language": "finnish"}), "the shop answers")
        self.assertEqual(self.ask(port, "long " * 500)[0], 422)
        self.stack.children["web"].stop()
        self.assertEqual(self.ask(port, FINNISH)[0], 503)
        self.stack.start_web()
        self.stack.ready()
        self.assertEqual(self.ask(port, FINNISH)[0], 200)

    def ask(self, port: int, text: str) -> tuple[int, object]:
        """The shop's answer, or 0 while it starts."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/language?{urlencode({'text': text})}") as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except OSError:
            return 0, None


class ReadmeTests(SimpleTestCase):
    def test_every_example_is_in_the_table(self) -> None:
        page = (EXAMPLES / "README.md").read_text()
        for name in os.listdir(EXAMPLES):
            if name not in ("README.md", "__init__.py", "__pycache__"):
                self.assertIn(f"]({name})", page)
