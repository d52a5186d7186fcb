"""Another Django project calls the service: the client is installed by itself, where nothing of the service is.

README's code for that project, and both tasks of docs/guide/from-a-celery-task.md, run as they are printed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import tomllib
import venv
from pathlib import Path
from typing import Any
from unittest import SkipTest
from uuid import UUID, uuid4

from django.conf import settings

from tests import tiny_models
from tests.conditions import PATIENCE_S, eventually
from tests.e2e.case import StackCase
from tests.ports import HOST, free_port
from tools.launcher.supervisor import Program

ROOT = Path(settings.BASE_DIR)
CLIENT = ROOT / "batch_inference_client"
README = (ROOT / "README.md").read_text().partition("## From your Django project\n")[2].partition("\n## ")[0]
PAGE = (ROOT / "docs/guide/from-a-celery-task.md").read_text()
SETTINGS, VIEWS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
BEFORE, AFTER, SUBMIT, LATER = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(TABLE,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
MODEL = re.compile(r'"distilbert/[^"]*"(\nrevision = .*)?')
TEXT = "it was a good house in paris"
THEIR_SETTINGS = """\
import os

SECRET_KEY = "theirs"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "urls"
INSTALLED_APPS = []
"""
THEIR_URLS = """\
from django.urls import path
from views import sentiment

urlpatterns = [path("sentiment", sentiment)]
"""
THEIR_CELERY = """\
import os

from celery import Celery

app = Celery("theirs", broker=os.environ["THEIR_REDIS"], backend=os.environ["THEIR_REDIS"], include=["tasks"])
app.set_default()
"""
SETUP = """
import importlib.util
import json
import sys

import django

assert not any(map(importlib.util.find_spec, ("inference", "api", "project"))), "the service can be imported"
django.setup()
"""
CALLER = f"{SETUP}import theirs, tasks\n"
DELAY = f"print(json.dumps(tasks.sentiment.delay(sys.argv[1]).get(timeout={PATIENCE_S})))"
VISIT = f"""{SETUP}
from django.test import Client

answer = Client().get("/sentiment", json.loads(sys.argv[1]))
print(json.dumps([answer.status_code, answer.json()]))
"""
ALONE = """
import importlib.util
import json
from importlib.metadata import distributions, version

import batch_inference_client

theirs = ("django", "celery", "torch", "inference", "api", "project")
print(json.dumps([
    sorted(each.metadata["Name"] for each in distributions()), version("batch-inference-client"),
    batch_inference_client.__file__, [name for name in theirs if importlib.util.find_spec(name)],
]))
"""
CALLS = """
import asyncio
import json
import os
import sys

from batch_inference_client import Client, ClientError

with Client(os.environ["INFERENCE_URL"], os.environ["INFERENCE_API_KEY"]) as client:
    answers = [client.run("sentiment", sys.argv[1]), client.submit("sentiment", sys.argv[1]).result()]
    answers.append(asyncio.run(client.arun("sentiment", sys.argv[1])))
    answers += client.map("sentiment", [sys.argv[1]])
with Client(os.environ["INFERENCE_URL"], "another") as stranger:
    try:
        stranger.run("sentiment", sys.argv[1])
    except ClientError as error:
        answers.append(error.code)
print(json.dumps(answers))
"""


class InstalledClientTests(StackCase):
    """The tests call with a key of that project's site, and share one environment with the client."""

    folder: Path
    site: Path
    python: Path
    project: Path
    environment: dict[str, str]

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.install()
        tiny_models.build("text-classification", cls.folder / "model")
        cls.options = {
            "models": MODEL.sub(f'"{cls.folder}/model"', TABLE),
            "replicas": 1,
            "environment": {"API_KEY_REQUIRED": "1"},
        }
        super().setUpClass()
        broker = f"redis+socket://{cls.stack.socket}?virtual_host=7"
        cls.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "PYTHON"))},
            "INFERENCE_URL": f"http://{HOST}:{cls.stack.port}",
            "INFERENCE_API_KEY": cls.stack.issue_key("site"),
            "THEIR_REDIS": broker,
        }
        cls.project = cls.write_project(tasks=AFTER, views=VIEWS)
        worker = (sys.executable, "-P", "-m", "celery", "-A", "theirs", "worker", "-c", "2", "--loglevel", "INFO")
        cls.stack.start(Program(name="theirs", command=worker, environment=cls.their_environment(cls.project)))

    @classmethod
    def install(cls) -> None:
        """Install the client with pip from its folder, into a new environment that has not even pip."""
        venv.create(cls.folder / "venv", with_pip=False)
        cls.python = cls.folder / "venv/bin/python"
        there = {*CLIENT.iterdir(), CLIENT / "__pycache__"}
        pip = (sys.executable, "-m", "pip", "--python", cls.python, "install", "--quiet", "--no-compile", CLIENT)
        run = subprocess.run(pip, cwd=cls.folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        if run.returncode and "No matching distribution found for hatchling" in run.stderr and not os.environ.get("CI"):
            raise SkipTest("pip reaches no package index, from which it takes what builds the client")
        if run.returncode:
            raise AssertionError(f"pip install {CLIENT} failed: {run.stderr}")
        if left := set(CLIENT.iterdir()) - there:
            raise AssertionError(f"pip install wrote into the folder: {left}")
        (cls.site,) = cls.folder.glob("venv/lib/python*/site-packages")

    def run_alone(self, *command: str | Path) -> str:
        """Return what a program of the new environment prints; it finds no other package."""
        run = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        return run.stdout

    # The client alone

    def test_it_brings_urllib3_and_its_version_is_that_of_the_service(self) -> None:
        brought, version, file, theirs = json.loads(self.run_alone(self.python, "-I", "-c", ALONE))
        self.assertEqual((brought, theirs), (["batch-inference-client", "urllib3"], []))
        self.assertEqual(Path(file).parent, self.site / "batch_inference_client")
        self.assertEqual(version, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])

    def test_it_calls_a_model_from_threads_and_from_asyncio_and_by_its_command(self) -> None:
        expected = self.answer(TEXT)
        *answers, refusal = json.loads(self.run_alone(self.python, "-I", "-c", CALLS, TEXT))
        self.assertEqual((answers, refusal), ([expected] * 4, "unauthorized"))
        command = self.folder / "venv/bin/batch-inference-client"
        self.assertEqual(json.loads(self.run_alone(command, "run", "sentiment", TEXT)), expected)

    def answer(self, text: str) -> Any:
        """Return what the service answers."""
        headers = {"Authorization": f"Bearer {self.environment['INFERENCE_API_KEY']}", "Prefer": "outputs=plain"}
        answer = self.stack.post(f"/v1/models/sentiment?timeout={PATIENCE_S:g}", {"inputs": text}, headers=headers)
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json

    # Another Django project, which has Django and Celery, and of the service its client only

    @classmethod
    def write_project(cls, **files: str) -> Path:
        folder = Path(tempfile.mkdtemp(dir=cls.folder))
        files = {"settings": THEIR_SETTINGS + SETTINGS, "urls": THEIR_URLS, "theirs": THEIR_CELERY, **files}
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
        return folder

    @classmethod
    def their_environment(cls, folder: Path, **environment: str) -> dict[str, str]:
        path = os.pathsep.join(map(str, (folder, cls.site)))
        return {**cls.environment, "DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": path, **environment}

    def run_theirs(self, folder: Path, code: str, *arguments: str, **environment: str) -> Any:
        """Return what this code prints as JSON. It cannot import the service: `-P` keeps this folder out."""
        run = subprocess.run(
            [sys.executable, "-P", "-c", code, *arguments],
            env=self.their_environment(folder, **environment),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        return json.loads(run.stdout.splitlines()[-1])

    def test_the_view_in_readme_answers_whatever_becomes_of_the_service(self) -> None:
        body = json.dumps({"text": TEXT})
        self.assertEqual(self.run_theirs(self.project, VISIT, body), [200, {"answer": self.answer(TEXT)}])
        self.assertEqual(self.run_theirs(self.project, VISIT, "{}")[0], 422)
        nowhere = f"http://{HOST}:{free_port()}"
        status, response = self.run_theirs(self.project, VISIT, body, INFERENCE_URL=nowhere)
        self.assertEqual(status, 503)
        self.assertIn("cannot be reached", response["error"])

    # Its Celery tasks

    def call_task(self, code: str, *arguments: str, project: Path | None = None) -> Any:
        return self.run_theirs(project or self.project, CALLER + code, *arguments)

    def ended(self, task: str) -> int:
        """Return how often their worker has ended this task well."""
        return sum(f"[{task}] succeeded" in line for line in list(self.stack.log))

    def test_the_task_that_calls_the_service_answers_as_the_one_that_loads_the_model(self) -> None:
        before = self.write_project(tasks=MODEL.sub(f'"{self.folder}/model"', BEFORE))
        [loaded] = self.call_task("print(json.dumps(tasks.sentiment(sys.argv[1])))", TEXT, project=before)
        [answer] = self.call_task(DELAY, TEXT)
        self.assertEqual([answer], self.answer(TEXT))
        self.assertEqual(answer["label"], loaded["label"])
        self.assertAlmostEqual(answer["score"], loaded["score"], places=4)

    def test_what_the_service_refuses_is_raised_by_the_result_with_its_code(self) -> None:
        code = f"""
            try:
                tasks.sentiment.delay(7).get(timeout={PATIENCE_S})
            except tasks.ClientError as error:
                print(json.dumps([error.code, error.detail, error.passing]))
            """
        code, detail, passing = self.call_task(textwrap.dedent(code))
        self.assertEqual((code, passing), ("invalid_input", False))
        self.assertIn("inputs", detail)

    def test_a_message_that_is_delivered_twice_is_one_job(self) -> None:
        text, task = f"a good dog {uuid4()}", str(uuid4())
        deliver = "tasks.sentiment.apply_async((sys.argv[1],), task_id=sys.argv[2])\n"
        self.call_task(f"{2 * deliver}print(0)", text, task)
        eventually(lambda: self.ended(task) == 2, "both ended well")
        self.assertEqual(self.stack.jobs.filter(inputs=text, owner__username="site").count(), 1)

    def test_a_service_that_is_away_for_a_moment_fails_no_task(self) -> None:
        self.stack.children["web"].stop()
        task = self.call_task("print(json.dumps(tasks.sentiment.delay(sys.argv[1]).id))", TEXT)
        self.log_shows("cannot be reached", "the client says what it waits for")
        self.assertEqual(self.ended(task), 0)
        self.stack.start_web()
        eventually(lambda: self.ended(task) == 1, "it ends well")

    def test_a_job_is_fetched_later_by_another_program_without_a_task(self) -> None:
        names = "from tasks import client\n"
        job = self.run_theirs(self.project, f"{SETUP}{names}{SUBMIT}print(json.dumps(job_id))")
        self.stack.finished(UUID(job))
        later = f"{SETUP}{names}job_id = sys.argv[1]\n{LATER}print(json.dumps(answer))"
        self.assertEqual(self.run_theirs(self.project, later, job), self.answer("What a day"))
