"""What holds for every answer: problem documents, request ids, optional slashes, bounds."""

from typing import Any
from unittest.mock import patch

from django.contrib.auth import get_user_model
from django.contrib.sessions.backends.db import SessionStore
from django.db import OperationalError
from django.test import Client, override_settings

from api import codec
from inference.models import Job
from inference.status import readiness
from inference.submission import jobs
from tests.api.base import ApiTestCase

JOBS = "/v1/jobs"


class ProblemTests(ApiTestCase):
    def test_an_unknown_address_is_a_problem_with_debug_on_and_off(self) -> None:
        for debug in (True, False):
            with self.subTest(debug=debug), override_settings(DEBUG=debug):
                client = Client(enforce_csrf_checks=True)
                for path in ("/nope", "/administration", "/v1/jobs/x/y/z"):
                    self.assert_problem(client.get(path), 404, "not_found")
                    self.assert_problem(client.post(path, {}), 404, "not_found")

    def test_a_wrong_method_names_the_right_ones(self) -> None:
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            with self.subTest(method):
                answer = self.client.generic(method, f"{JOBS}?limit=5")
                self.assert_problem(answer, 405, "method_not_allowed")
                self.assertIn("POST", answer["Allow"])

    def test_a_wrong_media_type_is_415(self) -> None:
        self.assert_problem(
            self.post(JOBS, b"a=1", content_type="application/x-www-form-urlencoded"), 415, "unsupported_media_type"
        )

    def test_bodies_that_are_not_json_as_we_store_it_are_400(self) -> None:
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

    def test_an_escaped_backslash_before_u0000_is_text(self) -> None:
        self.assertEqual(self.post(JOBS, b'{"model":"echo","inputs":"\\\\u0000"}').status_code, 202)

    @override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=100)
    def test_a_large_body_is_413_and_says_the_limit(self) -> None:
        problem = self.assert_problem(self.post(JOBS, b"x" * 101), 413, "body_too_large")
        self.assertIn("100", problem["detail"])

    def test_a_foreign_host_is_a_problem(self) -> None:
        self.assert_problem(self.client.get("/v1/models", headers={"Host": "evil.example"}), 400, "bad_request")
        for probe in ("/healthz", "/readyz", "/healthz/"):  # a load balancer asks by address
            self.assertIn(self.client.get(probe, headers={"Host": "10.1.2.3"}).status_code, (200, 503))

    def test_the_database_away_is_503_with_retry_after(self) -> None:
        with patch.object(jobs, "submit", side_effect=OperationalError("server closed the connection")):
            answer = self.post(JOBS, {"model": "echo", "inputs": "x"})
        problem = self.assert_problem(answer, 503, "store_unavailable")
        self.assertNotIn("server closed", problem["detail"])
        self.assertIn("Retry-After", answer)

    def test_the_database_away_is_503_for_the_admin_s_pages_too(self) -> None:
        client = Client(raise_request_exception=False)
        client.force_login(get_user_model().objects.create_superuser("root"))
        with patch.object(SessionStore, "load", side_effect=OperationalError("away")):
            self.assert_problem(client.get("/admin/"), 503, "store_unavailable")

    def test_an_unforeseen_error_is_500_and_reveals_nothing(self) -> None:
        with (
            patch.object(jobs, "submit", side_effect=RuntimeError("secret")),
            self.assertLogs("api.errors.problems", "ERROR"),
        ):
            answer = self.post(JOBS, {"model": "echo", "inputs": "x"})
        self.assertNotIn("secret", str(self.assert_problem(answer, 500, "internal")))


class WordsTests(ApiTestCase):
    """What is wrong is said in the client's own terms, with what would be right."""

    def detail(self, path: str, body: Any, status: int = 422, **options: Any) -> str:
        answer = self.post(path, body, **options)
        self.assertEqual(answer.status_code, status, answer.content)
        detail: str = answer.json()["detail"]
        return detail

    def test_the_error_of_a_misspelt_field_suggests_the_right_one(self) -> None:
        for path, body in (("/v1/models/vectors", {"input": "x"}), ("/v1/models/echo", {"input": "x"}),
                           (JOBS, {"model": "echo", "input": "x"})):  # fmt: skip
            with self.subTest(path):
                self.assertEqual(self.detail(path, body), "input: unknown field; did you mean inputs?")
        known = self.detail("/v1/models/vectors", {"inputs": "x", "normalise": True})
        self.assertEqual(known, "parameters.normalise: unknown parameter; did you mean normalize?")

    def test_the_error_of_a_misplaced_field_names_its_place(self) -> None:
        for path in ("/v1/models/vectors", "/v1/models/echo"):
            with self.subTest(path):
                self.assertIn("timeout goes in the query: ?timeout=", self.detail(path, {"inputs": "x", "timeout": 3}))
        self.assertIn("Prefer: wait=", self.detail(JOBS, {"model": "echo", "inputs": "x", "wait": 3}))
        self.assertIn("Prefer: wait=", self.detail(f"{JOBS}?wait=3", {"model": "echo", "inputs": "x"}, 400))
        belongs = self.detail(f"{JOBS}/bulk?priority=high", {"model": "echo", "inputs": ["x"]}, 400)
        self.assertIn("it belongs in the body", belongs)

    def test_a_query_is_refused_where_nobody_reads_it(self) -> None:
        self.assertIn("none is known here", self.detail(f"{JOBS}?limit=5", {"model": "echo", "inputs": "x"}, 400))
        self.assertEqual(self.client.get("/v1/models/echo?timeout=3").status_code, 400)
        self.assertEqual(Job.objects.count(), 0)

    def test_errors_name_types_and_values_in_json_s_words(self) -> None:
        wrong = {
            "top_k": ("7", 'must be a whole number, not "7"'), "mode": (True, "must be a string, not true"),
            "mod": (1, "did you mean mode?"),
        }  # fmt: skip
        for name, (value, message) in wrong.items():
            with self.subTest(name):
                detail = self.detail("/v1/models/echo", {"inputs": "x", "parameters": {name: value}})
                self.assertIn(message, detail)
        self.assertIn(
            'must be one of "plain", "loud", not "x"',
            self.detail("/v1/models/echo", {"inputs": "x", "parameters": {"mode": "x"}}),
        )
        self.assertIn("not a number", self.detail("/v1/models/pictures", {"inputs": 7}))

    def test_errors_name_both_bounds(self) -> None:
        for value in (0, -1, 604_801):
            with self.subTest(value):
                detail = self.detail(JOBS, {"model": "echo", "inputs": "x", "expires_in": value})
                self.assertEqual(detail, "expires_in: must be from 0.001 to 604800 seconds.")
        lines = self.detail(
            f"{JOBS}/bulk?model=echo&expires_in=0", b'{"inputs":"x"}', 400, content_type="application/x-ndjson"
        )
        self.assertIn("from 0.001 to 604800", lines)

    def test_the_error_of_a_body_that_is_not_utf_8_names_the_byte(self) -> None:
        problem = self.assert_problem(self.post(JOBS, b'{"model": "\xff"}'), 400, "invalid_json")
        self.assertEqual(problem["detail"], "The body is not UTF-8 at byte 11.")

    def test_the_error_of_deleting_what_waits_says_how_to_cancel(self) -> None:
        job = self.submit()
        bulk = self.post(f"{JOBS}/bulk", {"model": "echo", "inputs": ["x"]}).json()
        for address, status, code, words in (
            (f"{JOBS}/{job['id']}", 409, "job_in_use", "POST {}/cancel ends it"),
            (f"{JOBS}/bulk/{bulk['id']}", 405, "method_not_allowed", "To cancel: POST {}/cancel"),
        ):
            with self.subTest(address):
                problem = self.assert_problem(self.client.delete(address), status, code)
                self.assertIn(words.format(address), problem["detail"])

    @override_settings(WEBHOOK_HOSTS=["a.example"])
    def test_an_address_s_schemes_are_named(self) -> None:
        for private, schemes in ((False, "with https://, without"), (True, "with http:// or https://, without")):
            with self.subTest(private), override_settings(WEBHOOK_ALLOW_PRIVATE=private):
                body = {"model": "echo", "inputs": "x", "webhook": "ftp://u:p@a.example/"}
                self.assertIn(f"{schemes} user:password@", self.detail(JOBS, body))


class LengthTests(ApiTestCase):
    """No answer repeats the question at length, and nothing is read that is too much to begin with."""

    @override_settings(MAX_BULK_INPUTS=3)
    def test_lines_are_counted_before_one_is_parsed(self) -> None:
        with patch("api.requests.bulk.codec.parse_json") as parse:
            answer = self.post(f"{JOBS}/bulk?model=echo", b"{}\n" * 4, content_type="application/x-ndjson")
        self.assertIn("1 to 3", self.assert_problem(answer, 422, "invalid_input")["detail"])
        parse.assert_not_called()

    def test_blank_lines_are_no_inputs(self) -> None:
        with override_settings(MAX_BULK_INPUTS=1):
            answer = self.post(
                f"{JOBS}/bulk?model=echo", b"\n\r\n" * 99 + b'{"inputs": "x"}\r\n', content_type="application/x-ndjson"
            )
        self.assertEqual((answer.status_code, answer.json()["total"]), (202, 1))

    def test_values_are_counted_before_they_are_parsed_and_texts_hold_none(self) -> None:
        with patch.object(codec, "MAX_VALUES", 10):
            for body in (b'{"model":"echo","inputs":[%s]}' % b",".join([b"{}"] * 9), b"[" * 11, b'["\\\\",' * 11):
                with self.subTest(body):
                    self.assert_problem(self.post(JOBS, body), 413, "body_too_large")
            text = ",[{" * 99 + '\\"' + '"' + ",[{" * 99
            self.assertEqual(self.submit(text)["status"], "queued")

    def test_many_unknown_fields_are_named_by_a_few(self) -> None:
        body = {"model": "echo", "inputs": "x", **{f"{n}{'n' * 1000}": 0 for n in range(100)}}
        answer = self.post(JOBS, body)
        self.assert_problem(answer, 422, "invalid_input")
        self.assertLess(len(answer.content), 3000)

    @override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=10_000)
    def test_parameters_that_many_jobs_share_are_bounded_by_what_they_take_together(self) -> None:
        body = {"model": "echo", "inputs": ["x"] * 10, "parameters": {"mode": "n" * 1000}}
        problem = self.assert_problem(self.post(f"{JOBS}/bulk", body), 422, "invalid_input")
        self.assertIn("at most 1000 bytes", problem["detail"])

    def test_too_many_query_parameters_are_a_bad_request(self) -> None:
        self.assert_problem(self.client.get(f"{JOBS}?" + "&".join(["n=1"] * 1001)), 400, "bad_request")


class RequestIdTests(ApiTestCase):
    def test_an_id_is_taken_over_to_the_answer_the_row_and_the_log(self) -> None:
        with self.assertLogs("api.access", "DEBUG") as logs:
            answer = self.post(JOBS, {"model": "echo", "inputs": "x"}, headers={"X-Request-Id": "trace-1"})
        self.assertEqual(answer["X-Request-Id"], "trace-1")
        self.assertEqual(Job.objects.get().request_id, "trace-1")
        self.assertIn("POST '/v1/jobs' status=202", logs.output[0])

    def test_an_id_that_is_unfit_for_a_log_is_replaced(self) -> None:
        for offered in ("a b", "x" * 129, "\x1b[31m", "a\r\nX: 1", ""):
            with self.subTest(offered):
                made = self.client.get("/healthz", headers={"X-Request-Id": offered})["X-Request-Id"]
                self.assertRegex(made, r"^[0-9a-f]{32}$")


class SlashTests(ApiTestCase):
    def test_a_trailing_slash_changes_nothing(self) -> None:
        for path in ("/v1/jobs/", "/v1/models/", "/v1/models/echo/", "/healthz/", "/readyz/"):
            with self.subTest(path):
                self.assertEqual(self.client.get(path).status_code, self.client.get(path[:-1]).status_code)
        self.assertEqual(self.post("/v1/jobs/", {"model": "echo", "inputs": "x"}).status_code, 202)


class RootTests(ApiTestCase):
    def test_a_browser_at_the_root_finds_the_way(self) -> None:
        for address in self.client.get("/").json().values():
            with self.subTest(address):
                self.assertIn(self.client.get(address).status_code, (200, 302))
        self.assertRedirects(self.client.get("/admin"), "/admin/", fetch_redirect_response=False)


class HealthTests(ApiTestCase):
    def test_a_worker_that_is_not_connected_to_the_broker_is_not_ready(self) -> None:
        with self.worker() as laborer:
            laborer.row.connected = False
            laborer.row.save()
            self.assertIn(
                "echo: its worker is not connected to the broker.", self.client.get("/readyz").json()["reasons"]
            )

    def test_what_is_ready_is_served_at_once_also_to_who_was_refused_a_moment_ago(self) -> None:
        refused = self.client.post("/v1/models/echo", {"inputs": "a"}, content_type="application/json")
        self.assertEqual((refused.status_code, refused.json()["code"]), (503, "no_worker"))
        with self.worker():
            self.assertEqual(self.client.get("/readyz").status_code, 200)
            served = self.client.post("/v1/models/echo", {"inputs": "a"}, content_type="application/json")
            self.assertEqual(served.status_code, 200)
            self.assertEqual(self.client.get("/v1/models/echo").json()["served"]["workers"], 1)

    def test_it_names_which_of_two_brokers_is_away_and_no_password(self) -> None:
        away = "//user:s3cret@127.0.0.1:1/"
        for settings, reason in (
            ({"CELERY_BROKER_URL": f"amqp:{away}/"}, "The broker does not answer"),
            ({"CELERY_BROKER_URL": "memory://", "REDIS_URL": f"redis:{away}0"}, "The Redis of the notices"),
        ):
            with self.subTest(reason), self.worker(), override_settings(**settings):
                answer = self.client.get("/readyz")
                self.assertEqual(answer.status_code, 503)
                [found] = answer.json()["reasons"]
                self.assertTrue(found.startswith(reason), found)
                self.assertNotIn("s3cret", answer.content.decode())

    def test_alive_needs_nothing(self) -> None:
        self.assertEqual(self.client.get("/healthz").json(), {"status": "ok"})

    def test_ready_needs_a_ready_worker_for_every_model(self) -> None:
        answer = self.client.get("/readyz")
        self.assertEqual((answer.status_code, answer.json()["ready"]), (503, False))
        self.assertIn("echo: no living worker serves it.", answer.json()["reasons"])
        with self.worker():
            self.assertEqual(self.client.get("/readyz").json(), {"ready": True, "reasons": []})

    def test_of_a_model_that_could_not_be_loaded_the_reason_is_public_where_the_setting_says_so(self) -> None:
        with self.worker() as laborer:
            laborer.row.model_names.remove("echo")
            laborer.row.replicas = {"0": {"models": {"echo": "no weights at /nowhere"}}}
            laborer.row.save()
            for setting, why in (("full", "no weights at /nowhere"), ("redacted", readiness.Cause.FAILED.value)):
                with override_settings(ENGINE_ERRORS=setting):
                    answer = self.client.get("/readyz")
                self.assertEqual((answer.status_code, answer.json()["reasons"]), (503, [f"echo: {why}"]))
