import base64
from typing import Any

from django.test import override_settings

from inference.errors import BadOutput
from inference.models import Job, PausedModel, Worker, WorkerState
from inference.status import readiness
from tests import echo
from tests.api.base import ApiTestCase, echo_answer
from tests.conditions import PATIENCE_S


class RunTests(ApiTestCase):
    def test_the_answer_is_the_output_alone(self) -> None:
        with self.worker():
            answer = self.post("/v1/models/echo", {"inputs": "text"})
        self.assertEqual((answer.status_code, answer.json()), (200, echo.expected("text")))

    def test_several_inputs_have_an_answer_each(self) -> None:
        with self.worker():
            answer = self.post("/v1/models/echo", {"inputs": ["a", "b"]})
        self.assertEqual(answer.json(), [echo.expected("a"), echo.expected("b")])

    def test_a_wait_that_is_over_is_504_and_the_job_goes_on(self) -> None:
        self.idle_worker()
        answer = self.post("/v1/models/echo?timeout=0.01", {"inputs": "text"})
        problem = self.assert_problem(answer, 504, "not_finished")
        self.assertEqual(answer["Location"], f"/v1/jobs/{problem['job_id']}")
        self.assertIn("Retry-After", answer)
        with self.worker():
            output = self.client.get(f"/v1/jobs/{problem['job_id']}/output?wait={PATIENCE_S:g}")
        self.assertEqual(output.json(), echo.expected("text"))

    def test_the_504_of_a_paused_model_says_so(self) -> None:
        self.idle_worker()
        PausedModel.objects.create(model="echo")
        answer = self.post("/v1/models/echo?timeout=0.01", {"inputs": "text"})
        self.assertIn("'echo' is paused", self.assert_problem(answer, 504, "not_finished")["detail"])

    def test_a_bad_input_is_422_and_a_failing_model_is_502(self) -> None:
        with self.worker(echo_or_fail):
            self.assert_problem(self.post("/v1/models/echo", {"inputs": {"fail": "invalid"}}), 422, "invalid_input")
            self.assert_problem(self.post("/v1/models/echo", {"inputs": {"fail": "short"}}), 502, "bad_output")

    def test_nobody_serves_the_model_is_503_and_nothing_is_stored(self) -> None:
        answer = self.post("/v1/models/echo", {"inputs": "text"})
        problem = self.assert_problem(answer, 503, "no_worker")
        self.assertIn("No living worker has it.", problem["detail"])
        self.assertIn("Retry-After", answer)
        self.assertEqual(Job.objects.count(), 0)

    def test_raw_bytes_are_an_image_where_the_task_takes_one(self) -> None:
        with self.worker():
            for content_type in ("image/png", "application/octet-stream", ""):
                with self.subTest(content_type):
                    answer = self.client.generic("POST", "/v1/models/pictures", b"\x89PNG\0", content_type=content_type)
                    self.assertEqual(answer.json()["echo"], base64.b64encode(b"\x89PNG\0").decode())

    def test_raw_bytes_are_415_where_the_task_takes_text(self) -> None:
        answer = self.post("/v1/models/echo", b"\x89PNG\0", content_type="image/png")
        self.assert_problem(answer, 415, "unsupported_media_type")

    def test_json_without_a_content_type_is_read(self) -> None:
        with self.worker():
            answer = self.client.generic("POST", "/v1/models/echo", b'{"inputs": "text"}', content_type="")
        self.assertEqual(answer.json(), echo.expected("text"))

    def test_parameters_at_the_root_are_taken_for_feature_extraction(self) -> None:
        with self.worker():
            answer = self.post("/v1/models/vectors", {"inputs": "text", "normalize": True})
        self.assertEqual(answer.status_code, 200)
        self.assertEqual(Job.objects.get().parameters, {"normalize": True})

    def test_a_form_is_no_file(self) -> None:
        form = b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nRIFF\r\n--x--\r\n'
        with self.worker():
            answer = self.post("/v1/models/pictures", form, content_type="multipart/form-data; boundary=x")
            self.assertIn("bytes as the body", self.assert_problem(answer, 415, "unsupported_media_type")["detail"])
            for kind in ("image/png", "application/octet-stream", "application/x-www-form-urlencoded"):
                with self.subTest(kind):  # the last is what curl sends with --data-binary
                    self.assertEqual(self.post("/v1/models/pictures", b"png", content_type=kind).status_code, 200)

    def test_a_field_that_is_null_is_not_given(self) -> None:
        nulls = {"parameters": None, "options": None, "stream": None, "unheard_of": None}
        with self.worker():
            for model, body in (("echo", nulls), ("vectors", {**nulls, "truncate": True, "prompt_name": None})):
                with self.subTest(model):
                    answer = self.post(f"/v1/models/{model}", {"inputs": "text", **body})
                    self.assertEqual(answer.status_code, 200, answer.content)
        self.assertEqual(Job.objects.get(model="vectors").parameters, {})
        self.submit(parameters=None, priority=None, expires_in=None, webhook=None)
        bulk = self.post("/v1/jobs/bulk", {"model": "echo", "inputs": ["a"], "priority": None, "parameters": None})
        self.assertEqual(bulk.status_code, 202, bulk.content)
        line = b'{"inputs": "a", "parameters": null}'
        lines = self.post("/v1/jobs/bulk?model=echo", line, content_type="application/x-ndjson")
        self.assertEqual(lines.status_code, 202, lines.content)
        self.assert_problem(self.post("/v1/models/echo", {"inputs": None}), 422, "invalid_input")

    def test_a_stream_is_refused_and_no_stream_is_fine(self) -> None:
        with self.worker():
            self.assertEqual(self.post("/v1/models/echo", {"inputs": "x", "stream": False}).status_code, 200)
            problem = self.assert_problem(
                self.post("/v1/models/echo", {"inputs": "x", "stream": True}), 422, "invalid_input"
            )
        self.assertEqual(problem["errors"][0]["field"], "stream")


class ListTests(ApiTestCase):
    def test_models_are_listed_with_their_limits_and_parameters(self) -> None:
        items = self.client.get("/v1/models").json()["items"]
        self.assertEqual([item["name"] for item in items], ["echo", "pictures", "vectors"])
        self.assertEqual(items[0]["parameters"]["top_k"], {"type": "integer", "min": 1, "max": 10, "required": False})
        model = self.client.get("/v1/models/echo").json()
        self.assertEqual({name: model[name] for name in items[0]}, items[0])

    def test_how_a_model_is_run_is_noted(self) -> None:
        with self.worker():
            self.assertIsNone(self.client.get("/v1/models/echo").json()["served"]["note"])
            replica = {"pid": 1, "device": "cpu", "models": {"echo": "ready"}, "notes": {"echo": "Each runs alone."}}
            Worker.objects.update(replicas={"0": replica})
            self.assertEqual(self.client.get("/v1/models/echo").json()["served"]["note"], "Each runs alone.")

    def test_what_workers_have_of_a_model_is_shown_by_revision_and_state(self) -> None:
        self.assertEqual(self.client.get("/v1/models/echo").json()["served"]["entries"], [])
        old = {"name": "echo", "model": "a/b", "revision": "1", "digest": "x", "state": "ready", "why": ""}
        new = {**old, "revision": "2", "digest": "y", "state": "failed", "why": "no weights"}
        for models in ([old], [old, new]):
            Worker.objects.create(name="w", pid=1, state=WorkerState.READY, catalog={"digest": "z", "models": models})
        Worker.objects.create(name="of the version before", pid=1, state=WorkerState.READY, catalog=None)
        for setting, why in (("full", "no weights"), ("redacted", readiness.Cause.FAILED.value)):
            with override_settings(ENGINE_ERRORS=setting):
                shown = self.client.get("/v1/models/echo").json()
            self.assertEqual(
                shown["served"]["entries"],
                [
                    {"model": "a/b", "revision": "1", "state": "ready", "why": None, "workers": 2},
                    {"model": "a/b", "revision": "2", "state": "failed", "why": why, "workers": 1},
                ],
            )
        self.assertIsNone(shown["revision"])

    def test_an_unknown_model_is_404(self) -> None:
        self.assert_problem(self.client.get("/v1/models/nope"), 404, "unknown_model")
        self.assert_problem(self.post("/v1/models/nope", {"inputs": "x"}), 404, "unknown_model")


def echo_or_fail(value: Any, parameters: dict[str, Any]) -> Any:
    if value.get("fail") == "short":
        return BadOutput("The engine answered 0 items to 1 inputs.")
    return echo_answer(value, parameters)
