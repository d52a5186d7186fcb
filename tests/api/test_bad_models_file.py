"""A web process that has never read a good models file says so, and serves all that needs no model."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from unittest.mock import patch

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import TestCase, override_settings

from api.in_process_client import InProcessClient
from batch_inference_client import ClientError
from inference.catalog import reader
from inference.models import Job, Status
from inference.status import attention, metrics
from tests.api.base import ApiTestCase
from tests.conditions import ago
from tests.inference.test_admin import JOBS, AdminCase

BAD = "[echo]\nengine = 3\n"
GOOD = '[echo]\nengine = "tests.echo:EchoEngine"\n'
REASON = "line 2: engine must be a string in quotes, not 3."


class BadFile(TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.file = Path(self.enterContext(tempfile.TemporaryDirectory()), "models.toml")
        self.file.write_text(BAD)
        self.enterContext(override_settings(MODELS_FILE=self.file))


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
                self.assertIn("before the models file of this service is mended", answer.content.decode())
                self.assertIn("models_file_refused", answer.content.decode())
                self.assertIn("Retry-After", answer.headers)
        self.file.write_text(GOOD)
        self.assertEqual(self.client.get("/v1/models").json()["items"][0]["name"], "echo")

    def test_readiness_names_the_line(self) -> None:
        for shown, words in (("full", REASON), ("redacted", "The models file is refused.")):
            with override_settings(ENGINE_ERRORS=shown):
                self.assertEqual(self.client.get("/health").status_code, 503)
                answer = self.client.get("/readyz")
            self.assertEqual(answer.status_code, 503)
            self.assertIn(words, answer.json()["reasons"][-1])

    def test_inside_django_it_is_an_error_of_the_client(self) -> None:
        client = InProcessClient(owner=get_user_model().objects.create_user("ada"))
        for call in (client.models, lambda: client.submit("echo", "a").id):
            with self.assertRaises(ClientError) as raised:
                call()
            self.assertEqual(raised.exception.code, "models_file_refused")
            self.assertNotIn(str(self.file), str(raised.exception))

    @override_settings(ENGINE_ERRORS="full")
    def test_an_empty_file_and_none_are_named_too(self) -> None:
        for change, words in ((lambda: self.file.write_text(""), "no models"), (self.file.unlink, "No such file")):
            change()
            for _ in range(2):
                self.assertIn(words, self.client.get("/readyz").json()["reasons"][-1])

    def test_it_is_parsed_once(self) -> None:
        with patch.object(reader, "parse_catalog", wraps=reader.parse_catalog) as parse:
            for _ in range(3):
                self.client.get("/readyz")
        self.assertEqual(parse.call_count, 1)

    def test_jobs_and_the_schema_are_read(self) -> None:
        job = Job.objects.create(model="echo", inputs="a", output="b", status=Status.SUCCEEDED)
        self.assertEqual(self.client.get(f"/v1/jobs/{job.id}").json()["output"], "b")
        self.assertEqual(self.client.get("/v1/schema").status_code, 200)


class OperatorTests(BadFile, AdminCase):
    def test_pages_the_status_and_the_metrics_say_what_is_wrong(self) -> None:
        job = Job.objects.create(model="echo", inputs="a", status=Status.FAILED, finished_at=ago())
        for path in ("/admin/", "/admin/inference/pausedmodel/", "/admin/inference/job/"):
            with self.subTest(path):
                self.assertEqual(self.client.get(path).status_code, 200)
        self.assertIn(REASON, self.text("/admin/"))
        again = self.client.post(JOBS, {"action": "retry_jobs", "_selected_action": [job.pk]}, follow=True)
        self.assertContains(again, "No model is served before the models file")
        self.assertEqual([item.code for item in attention.find_items()], ["ModelsFileRefused"])
        shown = io.StringIO()
        with self.assertRaises(SystemExit):
            call_command("status", stdout=shown)
        self.assertIn(REASON, shown.getvalue())
        self.assertIn('inference_attention{code="ModelsFileRefused"} 1.0', metrics.format_metrics().decode())
