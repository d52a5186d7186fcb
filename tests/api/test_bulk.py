import json
import math
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from django.test import override_settings

from inference import budget
from inference.errors import InvalidInput
from inference.models import Bulk, Job
from inference.store import job_rows
from inference.values.priority import Priority
from inference.web_process import writer
from tests.api.base import ApiTestCase, Response, echo_answer
from tests.conditions import PATIENCE_S, eventually

LINES = "application/x-ndjson"


class BulkTests(ApiTestCase):
    def bulk(self, inputs: list[Any], **body: Any) -> Response:
        return self.post("/v1/jobs/bulk", {"model": "echo", "inputs": inputs, **body})

    def lines(self, *lines: str, query: str = "model=echo") -> Response:
        return self.post(f"/v1/jobs/bulk?{query}", "\n".join(lines), content_type=LINES)

    def finished(self, bulk_id: str) -> dict[str, Any]:
        def poll() -> dict[str, Any] | None:
            shown: dict[str, Any] = self.client.get(f"/v1/jobs/bulk/{bulk_id}").json()
            return shown if shown["finished"] else None

        return eventually(poll)

    def test_many_inputs_are_many_jobs_at_low_priority(self) -> None:
        answer = self.bulk([f"text {number}" for number in range(30)])
        shown = answer.json()
        self.assertEqual(answer.status_code, 202)
        self.assertEqual(answer["Location"], f"/v1/jobs/bulk/{shown['id']}")
        self.assertEqual([job["index"] for job in shown["jobs"]], list(range(30)))
        self.assertEqual((shown["total"], shown["counts"]["queued"], shown["finished"]), (30, 30, False))
        self.assertEqual(set(Job.objects.values_list("priority", flat=True)), {Priority.LOW})
        job = self.client.get(f"/v1/jobs/{shown['jobs'][3]['id']}").json()
        self.assertEqual((job["bulk"], job["bulk_index"]), (shown["id"], 3))

    def test_progress_is_counted_and_errors_are_listed_by_index(self) -> None:
        def answer(value: Any, parameters: dict[str, Any]) -> Any:
            return InvalidInput("not this one") if value == "bad" else echo_answer(value, parameters)

        with self.worker(answer):
            shown = self.finished(self.bulk(["a", "bad", "c"]).json()["id"])
        self.assertEqual((shown["counts"]["succeeded"], shown["counts"]["failed"]), (2, 1))
        (error,) = shown["errors"]
        self.assertEqual((error["index"], error["code"]), (1, "invalid_input"))
        self.assertEqual(error["detail"], "not this one")

    def test_inputs_that_the_model_does_not_take_are_refused_one_by_one(self) -> None:
        shown = self.bulk(["a", None, ["1", "2", "3", "4", "5"], "d"]).json()
        self.assertEqual([job["index"] for job in shown["jobs"]], [0, 3])
        self.assertEqual([error["index"] for error in shown["errors"]], [1, 2])
        self.assertEqual(shown["rejected"], 2)

    def test_json_lines_are_read_line_by_line(self) -> None:
        answer = self.lines(
            '{"inputs": "a"}',
            "",
            "{broken",
            '{"inputs": "b", "parameters": {"top_k": 99}}',
            '{"imputs": 1}',
            '{"inputs": "c", "parameters": {"top_k": 2}}',
        )
        shown = answer.json()
        self.assertEqual([job["index"] for job in shown["jobs"]], [0, 4])
        self.assertEqual(
            [error["code"] for error in shown["errors"]], ["invalid_json", "invalid_input", "invalid_input"]
        )
        self.assertEqual(Job.objects.get(pk=shown["jobs"][1]["id"]).parameters["top_k"], 2)

    def test_json_lines_expire_within_a_week(self) -> None:
        answer = self.lines('{"inputs": "a"}', query="model=echo&expires_in=604800")
        job = Job.objects.get(pk=answer.json()["jobs"][0]["id"])
        self.assertEqual(job.expires_at, job.created_at + timedelta(seconds=604_800))
        refused = self.lines('{"inputs": "a"}', query="model=echo&expires_in=604801")
        self.assert_problem(refused, 400, "bad_request")
        self.assertIn("from 0.001 to 604800", refused.json()["detail"])

    def test_json_lines_need_the_model_in_the_query(self) -> None:
        self.assert_problem(self.lines('{"inputs": "a"}', query="priority=low"), 400, "bad_request")
        self.assert_problem(self.lines('{"inputs": "a"}', query="model=nope"), 404, "unknown_model")

    def test_nothing_acceptable_is_422_and_stores_nothing(self) -> None:
        self.assert_problem(self.bulk([None, None]), 422, "invalid_input")
        self.assert_problem(self.bulk([]), 422, "invalid_input")
        self.assertEqual((Bulk.objects.count(), Job.objects.count()), (0, 0))

    @override_settings(MAX_BULK_INPUTS=3)
    def test_too_many_inputs_are_refused_with_the_limit(self) -> None:
        self.assertIn("1 to 3", self.assert_problem(self.bulk(["x"] * 4), 422, "invalid_input")["detail"])

    def test_cancelling_ends_what_waits(self) -> None:
        shown = self.bulk(["a", "b"]).json()
        cancelled = self.post(f"/v1/jobs/bulk/{shown['id']}/cancel").json()
        self.assertEqual((cancelled["counts"]["cancelled"], cancelled["finished"]), (2, True))

    def test_a_key_makes_the_same_bulk(self) -> None:
        ids = set()
        for _ in range(2):
            body = {"model": "echo", "inputs": ["a", "b"]}
            ids.add(self.post("/v1/jobs/bulk", body, headers={"Idempotency-Key": "k1"}).json()["id"])
        self.assertEqual((len(ids), Job.objects.count()), (1, 2))
        answer = self.post("/v1/jobs/bulk", {"model": "echo", "inputs": ["c"]}, headers={"Idempotency-Key": "k1"})
        self.assert_problem(answer, 422, "idempotency_mismatch")

    def test_jobs_of_a_bulk_can_be_listed(self) -> None:
        shown = self.bulk(["a", "b"]).json()
        self.submit()
        listed = self.client.get(f"/v1/jobs?bulk={shown['id']}").json()["items"]
        self.assertEqual({job["id"] for job in listed}, {job["id"] for job in shown["jobs"]})

    def test_an_unknown_bulk_is_404(self) -> None:
        for bulk_id in (uuid4(), "x"):
            self.assert_problem(self.client.get(f"/v1/jobs/bulk/{bulk_id}"), 404, "bulk_not_found")

    def test_a_long_line_of_low_priority_keeps_no_interactive_job_out(self) -> None:
        Job.objects.bulk_create(Job(model="echo", inputs="x", priority=Priority.LOW) for _ in range(50))
        job = self.submit()
        self.assertEqual(self.client.get(f"/v1/jobs/{job['id']}").json()["position"], 1)
        self.assertEqual(json.loads(self.bulk(["a"]).content)["counts"]["queued"], 1)

    def test_the_waits_for_its_first_jobs_count_and_those_for_more_of_them_do_not(self) -> None:
        left_s: list[float] = []
        insert = writer.insert_group

        def noted(group: Sequence[job_rows.JobRow]) -> None:
            left_s.append(budget.get_remaining_s())
            insert(group)

        with patch.dict(os.environ, DATABASE_ANSWER_S=f"{PATIENCE_S:g}"), patch.object(writer, "insert_group", noted):
            self.assertEqual(self.bulk(["x"] * (2 * job_rows.MOST + 1)).status_code, 202)
        self.assertTrue(0 < left_s[0] < PATIENCE_S + budget.GRACE_S, left_s)
        self.assertEqual(left_s[1:], [math.inf] * 2)
