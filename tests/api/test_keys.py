import datetime
from collections.abc import Callable
from io import StringIO
from typing import Any
from unittest.mock import Mock, patch

import redis
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from api.auth import keyring
from api.errors.problems import ApiError
from api.models import ApiKey, digest_key
from inference.broker import redis_client
from inference.models import Job
from inference.store import job_rows
from inference.submission import jobs
from inference.values.priority import Priority
from inference.web_process import rate_limits
from tests.api.base import ApiTestCase, Response
from tests.api.test_streams import WORDS, StreamCase
from tests.clocks import database_clock
from tests.conditions import ago


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def delete_elsewhere(user: User) -> None:
    """As another process does, so that no signal of it arrives here."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM api_apikey WHERE owner_id = %s", [user.pk])
    user.delete()


@override_settings(API_KEY_REQUIRED=True)
class KeyTests(ApiTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.ada = get_user_model().objects.create_user("ada")

    def issue(self, **fields: Any) -> tuple[ApiKey, str]:
        return ApiKey.objects.issue_key(**{"owner": self.ada, **fields})

    def get(self, key: str, path: str = "/v1/models") -> Response:
        return self.client.get(path, headers=bearer(key))

    def test_a_valid_key_opens_and_its_owner_owns_the_job(self) -> None:
        _, key = self.issue()
        answer = self.post("/v1/jobs", {"model": "echo", "inputs": "x"}, headers=bearer(key))
        self.assertEqual(answer.status_code, 202)
        self.assertEqual(Job.objects.get().owner, self.ada)

    def test_a_key_alone_in_its_header_opens_too(self) -> None:
        _, key = self.issue()
        self.assertEqual(self.client.get("/v1/models", headers={"Authorization": key}).status_code, 200)
        for wrong in ("inf_wrong", "hf_other", f"Basic {key}"):
            answer = self.client.get("/v1/models", headers={"Authorization": wrong})
            self.assert_problem(answer, 401, "unauthorized")

    def test_without_a_key_the_answer_says_how_to_send_one(self) -> None:
        answer = self.client.get("/v1/models")
        self.assertIn("Authorization: Bearer", self.assert_problem(answer, 401, "unauthorized")["detail"])
        self.assertIn("Bearer", answer["WWW-Authenticate"])

    def test_wrong_revoked_and_expired_keys_have_the_same_answer(self) -> None:
        expired = self.issue(expires_at=ago(1))[1]
        row, revoked = self.issue()
        row.revoke()
        for key in ("inf_wrong", expired, revoked):
            with self.subTest(key):
                problem = self.assert_problem(self.get(key), 401, "unauthorized")
                self.assertIn("may have been revoked", problem["detail"])

    def test_a_key_expires_by_the_database_s_clock_and_not_by_its_host_s(self) -> None:
        key = self.issue(expires_at=ago(-3600))[1]
        real = timezone.now
        with patch.object(timezone, "now", lambda: real() + datetime.timedelta(hours=2)):
            self.assertEqual(self.get(key).status_code, 200)
        keyring.forget_key()
        with database_clock(7200):
            self.assert_problem(self.get(key), 401, "unauthorized")

    def test_the_error_of_other_schemes_names_the_right_one(self) -> None:
        answer = self.client.get("/v1/models", headers={"Authorization": "Basic YTpi"})
        self.assertIn("Bearer KEY", self.assert_problem(answer, 401, "unauthorized")["detail"])

    def test_revoking_takes_effect_on_a_key_that_was_just_used(self) -> None:
        row, key = self.issue()
        self.assertEqual(self.get(key).status_code, 200)
        row.revoke()
        self.assertEqual(self.get(key).status_code, 401)

    def test_a_remembered_key_costs_no_query(self) -> None:
        _, key = self.issue()
        keyring.find_principal(key)
        with self.assertNumQueries(0):
            self.assertEqual(keyring.find_principal(key).user, self.ada)

    def test_the_key_of_an_owner_who_left_is_closed(self) -> None:
        _, key = self.issue()
        self.ada.is_active = False
        self.ada.save()
        self.assertEqual(self.get(key).status_code, 401)

    def test_the_key_of_an_owner_who_was_deleted_elsewhere_is_closed(self) -> None:
        for path, body in (("/v1/jobs", {"inputs": "x"}), ("/v1/jobs/bulk", {"inputs": ["x"]})):
            bob = get_user_model().objects.create_user("bob")
            _, key = ApiKey.objects.issue_key(owner=bob)
            self.assertEqual(self.get(key).status_code, 200)
            delete_elsewhere(bob)
            with self.subTest(path):
                self.assert_problem(
                    self.post(path, {"model": "echo", **body}, headers=bearer(key)), 401, "unauthorized"
                )
                self.assertEqual(Job.objects.count(), 0)
                with self.assertRaisesRegex(ApiError, "not valid"):
                    keyring.find_principal(key)

    def test_only_a_digest_is_stored(self) -> None:
        row, key = self.issue(name="ci")
        stored = " ".join(str(value) for value in ApiKey.objects.filter(pk=row.pk).values_list()[0])
        self.assertNotIn(key, stored)
        self.assertIn(digest_key(key), stored)

    def test_use_is_noted(self) -> None:
        row, key = self.issue()
        self.get(key)
        row.refresh_from_db()
        self.assertIsNotNone(row.last_used_at)

    def test_use_is_noted_also_after_the_clock_was_set_back(self) -> None:
        later = ago(days=-2)
        row, key = self.issue(last_used_at=later)
        self.get(key)
        row.refresh_from_db()
        self.assertTrue(row.last_used_at and row.last_used_at < later)

    def test_a_database_that_cannot_write_keeps_no_key_out(self) -> None:
        _, key = self.issue()

        def read_only(execute: Callable[..., Any], sql: str, *call: Any) -> Any:
            if sql.startswith("UPDATE"):
                raise OperationalError("database is locked")
            return execute(sql, *call)

        with connection.execute_wrapper(read_only), self.assertLogs("api.auth", "WARNING"):
            self.assertEqual(self.get(key).status_code, 200)

    def test_a_key_that_was_used_a_moment_ago_is_not_written(self) -> None:
        _, key = self.issue(last_used_at=ago())
        with CaptureQueriesContext(connection) as queries:
            self.assertEqual(self.get(key).status_code, 200)
        self.assertFalse([query["sql"] for query in queries if query["sql"].startswith("UPDATE")])

    @override_settings(API_KEY_REQUIRED=False)
    def test_where_none_is_needed_a_foreign_token_is_no_obstacle_but_a_revoked_key_is(self) -> None:
        self.assertEqual(self.get("hf_sometoken").status_code, 200)
        row, key = self.issue()
        row.revoke()
        self.assertEqual(self.get(key).status_code, 401)


@override_settings(API_KEY_REQUIRED=True)
class QuotaTests(ApiTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.ada = get_user_model().objects.create_user("ada")

    def test_too_many_requests_are_429_with_the_time_to_come_back(self) -> None:
        _, key = ApiKey.objects.issue_key(owner=self.ada, requests_per_minute=1)
        first, second = (self.client.get("/v1/models", headers=bearer(key)) for _ in range(2))
        self.assertEqual(first.status_code, 200)
        self.assert_problem(second, 429, "too_many_requests")
        self.assertGreaterEqual(int(second["Retry-After"]), 1)

    @override_settings(API_KEY_RATE=1)
    def test_a_key_without_a_rate_of_its_own_has_the_general_one(self) -> None:
        _, key = ApiKey.objects.issue_key(owner=self.ada)
        answers = [self.client.get("/v1/models", headers=bearer(key)) for _ in range(2)]
        self.assertEqual([answer.status_code for answer in answers], [200, 429])

    def test_a_tenth_of_a_minute_s_worth_is_allowed_at_once_and_then_one_in_its_time(self) -> None:
        for moment, waits in ((1000, [0.0, 0.0, 3.0]), (1003, [0.0, 3.0])):
            own = rate_limits.Rates()
            with patch.object(rate_limits, "LUA", rate_limits.LUA.replace("redis.call('TIME')", f"{{{moment}, 0}}")):
                self.assertEqual([own.count_against_rate("somebody", 20) for _ in waits], waits)

    def test_the_rate_is_kept_without_the_broker_too(self) -> None:
        own = rate_limits.Rates()
        no_broker = patch.object(redis_client, "get_client", side_effect=redis.ConnectionError)
        breaker = patch.object(redis_client, "breaker", redis_client.make_breaker())
        with no_broker as get, breaker, patch.object(rate_limits, "time", Mock(monotonic=lambda: 1000.0)):
            waits = [own.count_against_rate("somebody", 20) for _ in range(3)]
        self.assertEqual(waits, [0.0, 0.0, 3.0])
        self.assertEqual(get.call_count, 1, "the others do not wait for it")

    def test_a_share_of_the_queue_is_429_and_leaves_room_for_others(self) -> None:
        _, key = ApiKey.objects.issue_key(owner=self.ada, max_queued=2)
        _, other = ApiKey.objects.issue_key(owner=get_user_model().objects.create_user("bob"))
        statuses = [self.submit_as(key).status_code for _ in range(3)]
        self.assertEqual(statuses, [202, 202, 429])
        self.assert_problem(self.submit_as(key), 429, "too_many_queued")
        self.assertEqual(self.submit_as(other).status_code, 202)

    def test_low_priority_has_a_share_of_its_own(self) -> None:
        _, key = ApiKey.objects.issue_key(owner=self.ada, max_queued=1)
        Job.objects.create(model="echo", inputs="x", owner=self.ada, priority=Priority.LOW)
        self.assertEqual(self.submit_as(key).status_code, 202)

    @override_settings(API_KEY_MAX_LOW_QUEUED=2)
    def test_the_share_at_low_priority_has_a_limit_too(self) -> None:
        _, key = ApiKey.objects.issue_key(owner=self.ada)
        statuses = [self.submit_as(key, priority="low").status_code for _ in range(3)]
        self.assertEqual(statuses, [202, 202, 429])

    def test_a_key_without_the_right_to_high_is_refused_whatever_it_posts_to(self) -> None:
        _, key = ApiKey.objects.issue_key(owner=self.ada, may_use_high=False)
        self.assert_problem(self.submit_as(key, priority="high"), 403, "forbidden")
        bulk = {"model": "echo", "inputs": ["x"], "priority": "high"}
        self.assert_problem(self.post("/v1/jobs/bulk", bulk, headers=bearer(key)), 403, "forbidden")
        self.assertEqual([self.submit_as(key, priority=word).status_code for word in ("normal", "low")], [202, 202])
        self.assertFalse(Job.objects.filter(priority=Priority.HIGH).exists())

    def submit_as(self, key: str, **more: str) -> Response:
        return self.post("/v1/jobs", {"model": "echo", "inputs": "x", **more}, headers=bearer(key))


@override_settings(API_KEY_REQUIRED=True)
class KeyOfJobTests(StreamCase):
    """A job keeps the beginning of the key that it came with."""

    def setUp(self) -> None:
        super().setUp()
        self.ada = get_user_model().objects.create_user("ada")
        self.row, self.key = ApiKey.objects.issue_key(owner=self.ada, name="nightly")

    def made_by(self, path: str, body: Any = None, key: str = "") -> list[Job]:
        known = list(Job.objects.values_list("pk", flat=True))
        answer = self.post(path, body, headers=bearer(key or self.key))
        self.assertLess(answer.status_code, 300, answer.content if not answer.streaming else "")
        if answer.streaming:
            next(iter(answer.streaming_content))  # type: ignore[attr-defined]
            answer.close()
        made = list(Job.objects.exclude(pk__in=known))
        self.assertTrue(made)
        return made

    def test_it_does_in_whatever_way_it_is_submitted(self) -> None:
        ways: list[tuple[str, Any, int]] = [  # and how many rows that makes at least
            ("/v1/jobs", {"model": "words", "inputs": "x"}, 1),
            ("/v1/jobs", {"model": "words", "inputs": ["x"] * 100}, 2),
            ("/v1/jobs/bulk", {"model": "words", "inputs": ["x", "y"]}, 2),
            (WORDS, {"inputs": "x", "stream": True}, 1),
            ("/openai/v1/completions", {"model": "words", "prompt": "x", "stream": True}, 1),
            ("/openai/v1/chat/completions",
             {"model": "words", "messages": [{"role": "user", "content": "x"}], "stream": True}, 1),
        ]  # fmt: skip
        with self.generator():
            blocking = self.made_by(WORDS, {"inputs": "x"})
            blocking += self.made_by("/openai/v1/completions", {"model": "words", "prompt": "x"})
        self.assertEqual([job.key_start for job in blocking], [self.row.start] * 2)
        for path, body, least in ways:
            with self.subTest(path, body=body):
                made = self.made_by(path, body)
                self.assertGreaterEqual(len(made), least)
                self.assertEqual({job.key_start for job in made}, {self.row.start})

    def test_a_job_that_is_run_again_has_the_key_that_requested_it(self) -> None:
        (old,) = self.made_by("/v1/jobs", {"model": "words", "inputs": "x"})
        other, key = ApiKey.objects.issue_key(owner=self.ada)
        (new,) = self.made_by(f"/v1/jobs/{old.pk}/retry", key=key)
        self.assertEqual((new.owner, new.key_start), (self.ada, other.start))
        again = jobs.submit(jobs.make_resubmission(old))  # as the admin does, whose operators have no key
        self.assertEqual((again.owner, again.key_start), (self.ada, None))

    def test_a_repeated_request_is_answered_with_the_job_of_the_first_key(self) -> None:
        other = ApiKey.objects.issue_key(owner=self.ada)[1]
        for key in (self.key, other):
            self.post("/v1/jobs", {"model": "words", "inputs": "x"}, headers={**bearer(key), "Idempotency-Key": "k"})
        self.assertEqual(Job.objects.get().key_start, self.row.start)

    @override_settings(API_KEY_REQUIRED=False)
    def test_without_a_key_there_is_none(self) -> None:
        self.post("/v1/jobs", {"model": "words", "inputs": "x"})
        self.post("/v1/jobs/bulk", {"model": "words", "inputs": ["x"]})
        self.assertEqual(set(Job.objects.values_list("key_start", flat=True)), {None})

    def test_jobs_of_several_keys_are_written_together_each_with_its_own(self) -> None:
        other = ApiKey.objects.issue_key(owner=self.ada)[0]
        made = [Job(model="words", inputs="x", key_start=start) for start in (None, self.row.start, other.start)]
        job_rows.insert_jobs(list(map(job_rows.convert_job_to_row, made)))
        for job in made:
            self.assertEqual(Job.objects.get(pk=job.pk).key_start, job.key_start)

    def test_a_key_that_is_deleted_is_kept_in_its_jobs_and_costs_no_statement_of_them(self) -> None:
        (job,) = self.made_by("/v1/jobs", {"model": "words", "inputs": "x"})
        with CaptureQueriesContext(connection) as queries:
            self.row.delete()
        self.assertFalse([query for query in queries if "inference_job" in query["sql"]])
        job.refresh_from_db()
        self.assertEqual(job.key_start, self.key[:12])


class CommandTests(ApiTestCase):
    def create(self, *arguments: str) -> str:
        out = StringIO()
        call_command("create_api_key", *arguments, stdout=out, stderr=StringIO())
        return out.getvalue().strip()

    def test_the_command_prints_a_key_that_opens(self) -> None:
        key = self.create("ada", "--days", "1", "--rate", "100", "--max-queued", "7", "--staff", "--no-high")
        row = ApiKey.objects.get()
        self.assertEqual(row.digest, digest_key(key))
        self.assertEqual((row.requests_per_minute, row.max_queued, row.may_use_high), (100, 7, False))
        self.assertTrue(row.owner.is_staff)
        self.assertFalse(row.owner.has_usable_password())
        with override_settings(API_KEY_REQUIRED=True):
            self.assertEqual(self.client.get("/v1/models", headers=bearer(key)).status_code, 200)

    def test_the_command_refuses_what_cannot_be_meant(self) -> None:
        with self.assertRaisesMessage(CommandError, "--days must be above 0"):
            self.create("ada", "--days", "-1")
        for arguments in (("",), (" ",), ("a" * 200,), ("a\0b",)):
            with self.assertRaisesMessage(CommandError, "A user's name has 1 to 150 characters"):
                self.create(*arguments)
        for option, value in (("--days", "1e9"), ("--days", "nan"), ("--rate", "9" * 12), ("--max-queued", "9" * 12)):
            with self.assertRaisesMessage(CommandError, f"{option} must be above 0 and at most"):
                self.create("ada", option, value)
        self.assertFalse(ApiKey.objects.exists())
