"""A web process that has never read a good models file says so, and serves all that needs no model."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

from django.core.management import call_command
from django.test import TestCase, override_settings

from inference.models import Job, Status
from inference.status import attention, metrics
from tests.api.base import ApiTestCase
from tests.inference.test_admin import AdminCase

BAD = "[echo]\nengine = 3\n"
GOOD = '[echo]\nengine = "tests.echo:EchoEngine"\n'
REASON = "line 2: engine must be a string in quotes, not 3."


class BadFile(TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.file = Path(self.enterContext(tempfile.TemporaryDirectory()), "models.toml")
        self.file.write_text(BAD)
        self.enterContext(override_settings(MODELS_FILE=self.file))
        metrics.forget()


class ApiTests(BadFile, ApiTestCase):
    def test_requests_that_need_a_model_are_refused_until_the_file_is_mended(self) -> None:
        requests = (
            ("/v1/jobs", {"model": "echo", "inputs": "a"}),
            ("/v1/models/echo", {"inputs": "a"}),
            ("/v1/embeddings", {"model": "echo", "input": "a"}),
            ("/v1/models", None),
            ("/openai/v1/models", None),
        )
        for path, body in requests:
            with self.subTest(path):
                answer = self.post(path, body) if body else self.client.get(path)
                self.assertEqual(answer.status_code, 503)
                self.assertIn("before its operator mends their file", answer.content.decode())
                self.assertIn("Retry-After", answer.headers)
        self.file.write_text(GOOD)
        self.assertEqual(self.client.get("/v1/models").json()["items"][0]["name"], "echo")

    def test_readiness_names_the_line(self) -> None:
        for shown, words in (("full", REASON), ("redacted", "The models file cannot be read.")):
            with override_settings(ENGINE_ERRORS=shown):
                self.assertEqual(self.client.get("/health").status_code, 503)
                answer = self.client.get("/readyz")
            self.assertEqual(answer.status_code, 503)
            self.assertIn(words, answer.json()["reasons"][-1])

    def test_jobs_and_the_schema_are_read(self) -> None:
        job = Job.objects.create(model="echo", inputs="a", output="b", status=Status.SUCCEEDED)
        self.assertEqual(self.client.get(f"/v1/jobs/{job.id}").json()["output"], "b")
        self.assertEqual(self.client.get("/v1/schema").status_code, 200)


class OperatorTests(BadFile, AdminCase):
    def test_pages_the_status_and_the_metrics_say_what_is_wrong(self) -> None:
        Job.objects.create(model="echo", inputs="a")
        for path in ("/admin/", "/admin/inference/pausedmodel/", "/admin/inference/job/"):
            with self.subTest(path):
                self.assertEqual(self.client.get(path).status_code, 200)
        self.assertIn(REASON, self.text("/admin/"))
        self.assertEqual([item.code for item in attention.items()], ["ModelsFileRefused"])
        shown = io.StringIO()
        with self.assertRaises(SystemExit):
            call_command("status", stdout=shown)
        self.assertIn(REASON, shown.getvalue())
        self.assertIn('inference_attention{code="ModelsFileRefused"} 1.0', metrics.text().decode())
