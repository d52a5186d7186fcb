"""Each file in examples/, as it stands there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import replace
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode

from django.conf import settings
from django.contrib.auth import get_user_model
from django.test import SimpleTestCase

from tests.conditions import PATIENCE_S, eventually
from tests.e2e.case import StackCase
from tests.ports import HOST, free_port
from tools.launcher import programs
from tools.launcher.supervisor import Program

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

    def test_the_command_of_the_page_calls_a_model_of_these_in_a_terminal_of_its_own(self) -> None:
        (command,) = re.findall(r"`([^`]*manage\.py run [^`]*)`", (EXAMPLES / "README.md").read_text())
        command = command.replace(".venv/bin/python", shlex.quote(sys.executable))
        env = {**os.environ, **self.stack.environment, "MODELS_FILE": str(settings.BASE_DIR / "models.toml")}
        run = subprocess.run(
            command,
            shell=True,
            cwd=settings.BASE_DIR,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            env=env,
        )
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
        eventually(lambda: self.request_language(port, FINNISH) == (200, {"language": "finnish"}), "the shop answers")
        self.assertEqual(self.request_language(port, "long " * 500)[0], 422)
        self.stack.children["web"].stop()
        self.assertEqual(self.request_language(port, FINNISH)[0], 503)
        self.stack.start_web()
        self.stack.ready()
        self.assertEqual(self.request_language(port, FINNISH)[0], 200)

    def request_language(self, port: int, text: str) -> tuple[int, object]:
        """The shop's answer, or 0 while it starts."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/language?{urlencode({'text': text})}") as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except OSError:
            return 0, None

    def test_an_app_beside_the_api_has_logins_sessions_forms_and_middleware(self) -> None:
        get_user_model().objects.db_manager(self.stack.alias).create_superuser("anna", password="secret")
        url = self.start_notes()
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))

        def show(address: str, **fields: str) -> tuple[str, str]:
            """Open a page, or send its form; return where that led, and what is there."""
            if fields:
                [token] = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', show(address)[1])
                fields["csrfmiddlewaretoken"] = token
            with browser.open(address, urlencode(fields).encode() if fields else None) as page:
                return page.url, page.read().decode()

        self.assertEqual(show(f"{url}/notes/")[0], f"{url}/admin/login/?next=/notes/")
        landed, page = show(f"{url}/admin/login/?next=/notes/", username="anna", password="secret")
        self.assertEqual((landed, "anna, page" in page), (f"{url}/notes/", True))
        first, second = (int(re.findall(r"page (\d+)", show(f"{url}/notes/")[1])[0]) for _ in range(2))
        self.assertEqual(second, first + 1)
        landed, page = show(f"{url}/notes/", text=FINNISH)
        self.assertEqual((landed, f"{FINNISH}: finnish" in page), (f"{url}/notes/", True))
        (job,) = self.stack.jobs.filter(owner__username="anna")
        self.assertEqual(job.inputs, FINNISH)
        with urllib.request.urlopen(f"{url}/v1/models") as answer:
            self.assertNotIn("Set-Cookie", answer.headers)

    def start_notes(self) -> str:
        """Start the web server with the app's settings, and return where it is."""
        port = free_port()
        settings_of_notes = {"DJANGO_SETTINGS_MODULE": "examples.notes.settings"}
        self.stack.start(
            replace(programs.make_web_server(host=HOST, port=port), name="notes", environment=settings_of_notes)
        )
        self.addCleanup(self.stack.children["notes"].stop)
        url = f"http://{HOST}:{port}"

        def answers() -> bool:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/healthz"):
                return True
            return False

        eventually(answers, "the web server with the app answers")
        return url


class ReadmeTests(SimpleTestCase):
    def test_every_example_is_in_the_table(self) -> None:
        page = (EXAMPLES / "README.md").read_text()
        for name in os.listdir(EXAMPLES):
            if name not in ("README.md", "__init__.py", "__pycache__"):
                self.assertIn(f"]({name})", page)
