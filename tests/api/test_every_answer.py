"""What holds for every answer: problem documents, request ids, optional slashes, bounds."""

from unittest.mock import patch

from django.db import OperationalError
from django.test import Client, override_settings

from inference import jobs
from inference.models import Job
from tests.api.base import ApiTestCase

JOBS = "/v1/jobs"


class ProblemTests(ApiTestCase):
    def test_an_unknown_address_is_a_problem_with_debug_on_and_off(self):
        for debug in (True, False):
            with self.subTest(debug=debug), override_settings(DEBUG=debug):
                client = Client(enforce_csrf_checks=True)
                for path in ("/nope", "/administration", "/v1/jobs/x/y/z"):
                    self.assert_problem(client.get(path), 404, "not_found")
                    self.assert_problem(client.post(path, {}), 404, "not_found")

    def test_a_wrong_method_names_the_right_ones(self):
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            with self.subTest(method):
                answer = self.client.generic(method, JOBS)
                self.assert_problem(answer, 405, "method_not_allowed")
                self.assertIn("POST", answer["Allow"])

    def test_a_wrong_media_type_is_415(self):
        self.assert_problem(self.post(JOBS, b"a=1", content_type="application/x-www-form-urlencoded"), 415,
                            "unsupported_media_type")  # fmt: skip

    def test_bodies_that_are_not_json_as_we_store_it_are_400(self):
        bodies = {
            "empty": b"", "cut": b'{"model": "echo"', "text": b"hello", "nan": b'{"model":"echo","inputs":NaN}',
            "deep": b'{"model":"echo","inputs":' + b"[" * 70 + b"]" * 70 + b"}",
            "very deep": b"[" * 100_000, "nul": b'{"model":"echo","inputs":"\\u0000"}',
            "nul in a key": b'{"model":"echo","inputs":{"\\u0000":1}}',
            "surrogate": b'{"model":"echo","inputs":"\\ud800"}', "bytes": b"\xff\xfe", "raw nul": b'{"a":"\0"}',
            "infinite": b'{"model":"echo","inputs":1e999}',
        }  # fmt: skip
        for name, body in bodies.items():
            with self.subTest(name):
                self.assert_problem(self.post(JOBS, body), 400, "invalid_json")
        self.assertEqual(Job.objects.count(), 0)

    def test_an_escaped_backslash_before_u0000_is_text(self):
        self.assertEqual(self.post(JOBS, b'{"model":"echo","inputs":"\\\\u0000"}').status_code, 202)

    @override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=100)
    def test_a_large_body_is_413_and_says_the_limit(self):
        problem = self.assert_problem(self.post(JOBS, b"x" * 101), 413, "body_too_large")
        self.assertIn("100", problem["detail"])

    def test_a_foreign_host_is_a_problem(self):
        self.assert_problem(self.client.get("/v1/models", headers={"Host": "evil.example"}), 400, "bad_request")
        for probe in ("/healthz", "/readyz", "/healthz/"):  # a load balancer asks by address
            self.assertIn(self.client.get(probe, headers={"Host": "10.1.2.3"}).status_code, (200, 503))

    def test_the_database_away_is_503_with_retry_after(self):
        with patch.object(jobs, "submit", side_effect=OperationalError("server closed the connection")):
            answer = self.post(JOBS, {"model": "echo", "inputs": "x"})
        problem = self.assert_problem(answer, 503, "store_unavailable")
        self.assertNotIn("server closed", problem["detail"])
        self.assertIn("Retry-After", answer)

    def test_what_nobody_foresaw_is_500_and_tells_nothing(self):
        with patch.object(jobs, "submit", side_effect=RuntimeError("secret")), self.assertLogs("api.errors", "ERROR"):
            answer = self.post(JOBS, {"model": "echo", "inputs": "x"})
        self.assertNotIn("secret", str(self.assert_problem(answer, 500, "internal")))


class RequestIdTests(ApiTestCase):
    def test_an_id_is_taken_over_to_the_answer_the_row_and_the_log(self):
        with self.assertLogs("api.access", "DEBUG") as logs:
            answer = self.post(JOBS, {"model": "echo", "inputs": "x"}, headers={"X-Request-Id": "trace-1"})
        self.assertEqual(answer["X-Request-Id"], "trace-1")
        self.assertEqual(Job.objects.get().request_id, "trace-1")
        self.assertIn("POST '/v1/jobs' status=202", logs.output[0])

    def test_an_id_that_is_unfit_for_a_log_is_replaced(self):
        for offered in ("a b", "x" * 129, "\x1b[31m", "a\r\nX: 1", ""):
            with self.subTest(offered):
                made = self.client.get("/healthz", headers={"X-Request-Id": offered})["X-Request-Id"]
                self.assertRegex(made, r"^[0-9a-f]{32}$")


class SlashTests(ApiTestCase):
    def test_a_trailing_slash_changes_nothing(self):
        for path in ("/v1/jobs/", "/v1/models/", "/v1/models/echo/", "/healthz/", "/readyz/"):
            with self.subTest(path):
                self.assertEqual(self.client.get(path).status_code, self.client.get(path[:-1]).status_code)
        self.assertEqual(self.post("/v1/jobs/", {"model": "echo", "inputs": "x"}).status_code, 202)


class RootTests(ApiTestCase):
    def test_a_browser_at_the_root_finds_the_way(self):
        for address in self.client.get("/").json().values():
            with self.subTest(address):
                self.assertIn(self.client.get(address).status_code, (200, 302))
        self.assertRedirects(self.client.get("/admin"), "/admin/", fetch_redirect_response=False)


class HealthTests(ApiTestCase):
    def test_a_worker_that_is_not_connected_to_the_broker_is_not_ready(self):
        with self.worker() as laborer:
            laborer.row.connected = False
            laborer.row.save()
            self.assertIn(
                "echo: its worker is not connected to the broker.", self.client.get("/readyz").json()["reasons"]
            )

    def test_what_is_ready_is_served_at_once_also_to_who_was_refused_a_moment_ago(self):
        refused = self.client.post("/v1/models/echo", {"inputs": "a"}, content_type="application/json")
        self.assertEqual((refused.status_code, refused.json()["code"]), (503, "no_worker"))
        with self.worker():
            self.assertEqual(self.client.get("/readyz").status_code, 200)
            served = self.client.post("/v1/models/echo", {"inputs": "a"}, content_type="application/json")
            self.assertEqual(served.status_code, 200)
            self.assertEqual(self.client.get("/v1/models/echo").json()["served"]["workers"], 1)

    def test_alive_needs_nothing(self):
        self.assertEqual(self.client.get("/healthz").json(), {"status": "ok"})

    def test_ready_needs_a_ready_worker_for_every_model(self):
        answer = self.client.get("/readyz")
        self.assertEqual((answer.status_code, answer.json()["ready"]), (503, False))
        self.assertIn("echo: no living worker serves it.", answer.json()["reasons"])
        with self.worker():
            self.assertEqual(self.client.get("/readyz").json(), {"ready": True, "reasons": []})

    def test_a_model_that_could_not_be_loaded_says_why(self):
        with self.worker() as laborer:
            laborer.row.model_names.remove("echo")
            laborer.row.replicas["0"]["models"]["echo"] = "no weights at /nowhere"
            laborer.row.save()
            answer = self.client.get("/readyz")
        self.assertEqual((answer.status_code, answer.json()["reasons"]), (503, ["echo: no weights at /nowhere"]))
