"""What is wrong is said with what would be right: to clients, to operators, and before anything starts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

from django.conf import settings
from django.test import SimpleTestCase

from inference.models import WorkerState
from project import environment
from tests.conditions import PATIENCE_S, eventually
from tests.e2e.case import StackCase
from tests.ports import free_port
from tests.stack import ECHO, Answer
from tools.launcher import programs

MISSING = """
[missing]
engine = "inference.engines.embeddings:SentenceEmbeddings"
model = "/no/such/folder"
"""


class TestClients(StackCase):
    options = {"models": ECHO + MISSING, "replicas": 1, "environment": {"MAX_BODY_BYTES": "100000"}}

    def assert_problem(self, answer: Answer, status: int, code: str, detail: str) -> None:
        self.assertEqual(answer.headers["content-type"], "application/problem+json")
        self.assertEqual((answer.status, answer.json["code"]), (status, code), answer.body)
        self.assertIn(detail, answer.json["detail"])
        self.assertEqual(answer.json["error"], answer.json["detail"])

    def test_an_unknown_model_is_answered_with_those_that_there_are(self) -> None:
        for answer in (
            self.stack.post("/v1/jobs", {"model": "nope", "inputs": "a"}),
            self.stack.post("/v1/models/nope", {"inputs": "a"}),
        ):
            self.assert_problem(answer, 404, "unknown_model", "Known models: echo, missing")

    def test_malformed_json_is_answered_with_where_it_is_wrong(self) -> None:
        self.assert_problem(self.stack.post("/v1/jobs", b'{"model": "echo",}'), 400, "invalid_json", "line 1")

    def test_a_body_that_is_too_large_is_answered_with_the_limit(self) -> None:
        answer = self.stack.post("/v1/jobs", {"model": "echo", "inputs": "x" * 200_000})
        self.assert_problem(answer, 413, "body_too_large", "larger than the 100000 bytes")

    def test_missing_weights_are_shown_to_clients_operators_and_in_the_worker_row_and_harm_no_other_model(self) -> None:
        eventually(lambda: "/no/such/folder" in str(self.stack.get("/readyz").json["reasons"]), "the service says so")
        worker = self.stack.workers.get()
        self.assertEqual((worker.state, worker.model_names), (WorkerState.DEGRADED, ["echo"]))
        self.assertIn("/no/such/folder", worker.replicas["0"].models["missing"].why)
        self.log_shows("/no/such/folder", "the log says so")
        answer = self.stack.call("a", model="missing")
        self.assertEqual((answer.status, answer.headers["retry-after"] != ""), (503, True))
        self.assertEqual(self.stack.call("a").json["echo"], "a")


class TestBadModelsFile(SimpleTestCase):
    def refused(self, *command: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "models.toml"
            file.write_text('[echo]\nengine = "tests.echo:EchoEngine"\nmax_batch_sise = 3\n')
            environment = {
                "PATH": "",
                "MODELS_FILE": str(file),
                "DATA_DIR": folder,
                "REDIS_URL": f"unix://{folder}/none",
            }
            run = subprocess.run(
                command,
                env=environment,
                capture_output=True,
                text=True,
                cwd=settings.BASE_DIR,
                timeout=PATIENCE_S,
                check=False,
            )
        self.assertNotEqual(run.returncode, 0)
        return run.stdout + run.stderr

    def test_check_the_service_and_the_worker_refuse_it_by_line(self) -> None:
        for command in (
            (sys.executable, "manage.py", "check"),
            (sys.executable, "manage.py", "up", "--port", str(free_port())),
            programs.make_worker().command,
        ):
            message = self.refused(*command)
            self.assertIn("models.toml, line 3: unknown key 'max_batch_sise'; did you mean max_batch_size?", message)


class TestBadEnvironment(SimpleTestCase):
    def test_a_time_that_is_none_is_refused_in_one_sentence(self) -> None:
        run = subprocess.run(
            (sys.executable, "manage.py", "check"),
            env={**os.environ, "DATABASE_ANSWER_S": "soon"},
            capture_output=True,
            text=True,
            cwd=settings.BASE_DIR,
            timeout=PATIENCE_S,
            check=False,
        )
        self.assertEqual((run.returncode, run.stderr), (1, f"{self.said('soon')}\n"))
        for text in ("-1", "inf", ""):
            with patch.dict(os.environ, DATABASE_ANSWER_S=text), self.assertRaises(SystemExit) as raised:
                environment.read_number("DATABASE_ANSWER_S", 0)
            self.assertEqual(str(raised.exception), self.said(text))

    def test_a_database_of_another_kind_is_refused_and_its_password_not_shown(self) -> None:
        for address in ("mysql://ada:secret@127.0.0.1/x", "oracle://ada:secret@host/x", "no address", "http://secret"):
            with patch.dict(os.environ, DATABASE_URL=address), self.assertRaises(SystemExit) as raised:
                environment.read_database("DATABASE_URL", "")
            self.assertIn("DATABASE_URL must be an address such as postgres://", str(raised.exception))
            self.assertNotIn("secret", str(raised.exception))

    def said(self, text: str) -> str:
        return f"Error: DATABASE_ANSWER_S must be a number from 0 on, not {text!r}."
