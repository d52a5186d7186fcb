"""A client that a generator makes of /v1/schema, against the running service."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests import echo
from tests.conditions import PATIENCE_S
from tests.e2e.case import StackCase
from tests.ports import HOST

CONFIG = "content_type_overrides: {application/x-ndjson: application/octet-stream}"  # the generator knows no JSON lines
PACKAGE = "generated_inference_client"


class GeneratedClientTests(StackCase):
    options = {"replicas": 1}
    client: Any  # of the class that the generator makes

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        generate(cls.stack.get("/v1/schema").body, folder)
        sys.path.insert(0, str(folder))
        cls.addClassCleanup(sys.path.remove, str(folder))
        base = f"http://{HOST}:{cls.stack.port}"
        cls.client = part("client").AuthenticatedClient(base_url=base, token="unused")

    def submit(self, inputs: Any, **headers: Any) -> Any:
        body = part("models.job_body").JobBody.from_dict({"model": "echo", "inputs": inputs})
        return part("api.jobs.jobs_submit").sync(client=self.client, body=body, **headers)

    def test_it_submits_and_polls_and_waits(self) -> None:
        for inputs, expected in (
            ("text", echo.expected("text")),
            (["a", "b"], [echo.expected("a"), echo.expected("b")]),
        ):
            with self.subTest(inputs):
                job = self.submit(inputs)
                self.assertEqual(job.status.value, "queued")
                done = part("api.jobs.jobs_get").sync(job.id, client=self.client, wait=PATIENCE_S)
                self.assertEqual((done.status.value, as_json(done.output)), ("succeeded", expected))
                output = part("api.jobs.jobs_output").sync(job.id, client=self.client)
                self.assertEqual(as_json(output), expected)

    def test_it_waits_with_a_header_and_runs_again(self) -> None:
        job = self.submit("text", prefer=f"wait={PATIENCE_S:g}")
        self.assertEqual(job.status.value, "succeeded")
        again = part("api.jobs.jobs_retry").sync(job.id, client=self.client)
        self.assertNotEqual(again.id, job.id)
        cancelled = part("api.jobs.jobs_cancel").sync(again.id, client=self.client)
        self.assertIn(cancelled.status.value, ("cancelled", "succeeded"))

    def test_it_blocks_for_the_output_alone(self) -> None:
        body = part("models.run_body").RunBody.from_dict({"inputs": "text"})
        name = part("models.models_run_name").ModelsRunName.ECHO
        answer = part("api.models.models_run").sync(name, client=self.client, body=body)
        self.assertEqual(as_json(answer), echo.expected("text"))

    def test_a_problem_is_an_object_with_its_code(self) -> None:
        body = part("models.job_body").JobBody.from_dict({"model": "echo", "inputs": "x", "expires_in": -1})
        problem = part("api.jobs.jobs_submit").sync(client=self.client, body=body)
        self.assertEqual((problem.status, problem.code), (422, "invalid_input"))


def generate(document: bytes, folder: Path) -> None:
    """Raises `AssertionError` for whatever the generator could not make of the document."""
    (folder / "schema.json").write_bytes(document)
    (folder / "config.yml").write_text(CONFIG)
    command = [
        sys.executable, "-m", "openapi_python_client", "generate", "--path", "schema.json", "--config", "config.yml",
        "--meta", "none", "--output-path", PACKAGE, "--fail-on-warning",
    ]  # fmt: skip
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # it formats with ruff
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode or "warning" in done.stdout.lower():
        raise AssertionError(done.stdout + done.stderr)


def part(name: str) -> Any:
    return importlib.import_module(f"{PACKAGE}.{name}")


def as_json(value: Any) -> Any:
    return value.to_dict() if hasattr(value, "to_dict") else value
