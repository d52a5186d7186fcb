"""Many jobs with few requests: waiting for any of them, for all of a bulk, and pages with outputs."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch
from uuid import UUID, uuid4

from django.contrib.auth import get_user_model
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from api.models import ApiKey
from inference import budget, process_resources
from inference.errors import InvalidInput
from inference.fields.ids import make_first_id
from inference.models import Bulk, Job, Status
from inference.store import jobs_with_outputs
from inference.web_process import finish_listener
from tests import echo
from tests.api.base import ApiTestCase, Response, echo_answer
from tests.conditions import PATIENCE_S, ago, eventually

CLASSIFIER = '[texts]\nengine = "tests.echo:EchoEngine"\ntask = "text-classification"\n'


class WaitingRequest(threading.Thread):
    """A request that waits, in a thread of its own."""

    def __init__(self, call: Any) -> None:
        super().__init__(daemon=True)
        self.call = call
        self.start()

    def run(self) -> None:
        try:
            self.answer = self.call()
        finally:
            connection.close()

    def result(self) -> Any:
        self.join(PATIENCE_S)
        return self.answer.json()


class WakeTests(ApiTestCase):
    """Each wake of a request that waits costs it most of the time that its answer has."""

    COST_S = 3.0  # of the 4.5 s

    def setUp(self) -> None:
        super().setUp()
        self.now = 100.0
        self.enterContext(patch.dict(os.environ, DATABASE_ANSWER_S="4"))
        self.enterContext(patch.object(budget, "time", Mock(monotonic=lambda: self.now)))
        self.left = [UUID(self.submit(str(number))["id"]) for number in range(4)]

    def spend(self) -> None:
        with budget.counted_wait():
            self.now += self.COST_S

    def finish(self) -> None:
        Job.objects.filter(pk=self.left.pop()).update(status=Status.SUCCEEDED, output="x")

    def test_who_waits_for_any_of_many_jobs_is_woken_any_number_of_times(self) -> None:
        *others, last = ids = list(self.left)
        woken = iter([others, others, others, [last]])

        def wait(hints: finish_listener.FinishHints, timeout_s: float) -> set[UUID]:
            self.spend()
            job_ids = next(woken)
            if last in job_ids:
                self.finish()
            return set(job_ids)

        with patch.object(finish_listener.FinishHints, "wait", wait):
            shown = self.post(f"/v1/jobs/wait?wait={PATIENCE_S}", {"ids": list(map(str, ids))})
        self.assertEqual([job["id"] for job in shown.json()["items"]], [str(last)])

    def test_so_is_who_waits_for_all_of_a_bulk(self) -> None:
        bulk = Bulk.objects.create(model="echo", total=len(self.left))
        Job.objects.filter(pk__in=self.left).update(bulk=bulk)

        def wait(waiter: finish_listener.Waiter, timeout_s: float) -> None:
            self.spend()
            self.finish()

        with patch.object(finish_listener.Waiter, "wait", wait):
            shown = self.client.get(f"/v1/jobs/bulk/{bulk.pk}?wait={PATIENCE_S:g}")
        self.assertEqual(shown.json()["finished"], True)

    def test_who_blocks_is_answered_though_no_notice_came(self) -> None:
        before = set(Job.objects.values_list("pk", flat=True))

        def wait(waiter: finish_listener.Waiter, timeout_s: float) -> None:
            self.spend()
            made = Job.objects.exclude(pk__in=before).filter(status=Status.SUCCEEDED)
            with budget.lift_budget():  # the test's own look
                eventually(made.exists, "the worker answers")

        with self.worker(), patch.object(finish_listener.Waiter, "wait", wait):
            answer = self.post(f"/v1/models/echo?timeout={PATIENCE_S:g}", {"inputs": "x"})
        self.assertEqual((answer.status_code, answer.json()), (200, echo.expected("x")))


class WaitForAnyTests(ApiTestCase):
    def wait(self, *ids: Any, wait_s: float = 0, **options: Any) -> Response:
        return self.post(f"/v1/jobs/wait?wait={wait_s}", {"ids": [str(each) for each in ids]}, **options)

    def test_it_answers_with_those_that_are_finished(self) -> None:
        with self.worker():
            done = self.submit("a")
            eventually(lambda: self.wait(done["id"]).json()["items"])
        queued = self.submit("b")
        shown = self.wait(done["id"], queued["id"], wait_s=PATIENCE_S).json()
        self.assertEqual([(job["id"], job["output"]) for job in shown["items"]], [(done["id"], echo.expected("a"))])
        self.assertEqual((shown["missing"], shown["left"]), ([], 1))
        self.assertEqual(self.wait(queued["id"]).json(), {"items": [], "missing": [], "left": 1})

    def test_the_first_to_finish_ends_the_wait_and_nothing_is_left_behind(self) -> None:
        ids = [self.submit(str(number))["id"] for number in range(5)]
        request = WaitingRequest(lambda: self.wait(*ids, wait_s=PATIENCE_S))
        eventually(lambda: len(process_resources.current.listener.hinted) == 5)
        with self.worker():
            shown = request.result()
        self.assertGreater(len(shown["items"]), 0)
        self.assertEqual(process_resources.current.listener.hinted, {})

    def test_cancelled_ones_are_finished(self) -> None:
        job = self.submit()
        request = WaitingRequest(lambda: self.wait(job["id"], wait_s=PATIENCE_S))
        eventually(lambda: process_resources.current.listener.hinted)
        self.post(f"/v1/jobs/{job['id']}/cancel")
        self.assertEqual([each["status"] for each in request.result()["items"]], ["cancelled"])

    def test_what_is_not_there_ends_the_wait(self) -> None:
        old = UUID(int=make_first_id(ago()).int - (31 * 86_400_000 << 80))
        job, none = self.submit(), uuid4()
        with patch.object(finish_listener.FinishHints, "wait", return_value=set()) as waits:
            shown = self.wait(job["id"], none, old, wait_s=300.0).json()
        waits.assert_called_once_with(0.0)
        self.assertEqual(
            shown["missing"], [{"id": str(none), "code": "job_not_found"}, {"id": str(old), "code": "job_gone"}]
        )
        self.assertEqual((shown["items"], shown["left"]), ([], 1))

    @override_settings(API_KEY_REQUIRED=True)
    def test_another_owner_s_job_is_as_if_it_were_not_there(self) -> None:
        users = get_user_model().objects
        owner = users.create_user("owner")
        job = Job.objects.create(model="echo", inputs="x", owner=owner, status=Status.SUCCEEDED, output="x")
        for user, seen in (
            (owner, 1), (users.create_user("other"), 0), (users.create_user("staff", is_staff=True), 1),
        ):  # fmt: skip
            headers = {"Authorization": f"Bearer {ApiKey.objects.issue_key(owner=user)[1]}"}
            shown = self.wait(job.id, headers=headers).json()
            self.assertEqual((len(shown["items"]), len(shown["missing"])), (seen, 1 - seen))

    def test_ids_are_bounded_and_other_texts_are_refused(self) -> None:
        for ids in ([], ["x"], [7], [None], [str(uuid4())] * 501):
            with self.subTest(len(ids)):
                problem = self.assert_problem(self.post("/v1/jobs/wait", {"ids": ids}), 422, "invalid_input")
                self.assertTrue(problem["detail"].startswith("ids: must be"))
        problem = self.assert_problem(self.post("/v1/jobs/wait", {"ids": [], "wait": 3}), 422, "invalid_input")
        self.assertIn("it goes in the query: ?wait=", problem["detail"])

    @override_settings(MAX_WAITING_REQUESTS=1)
    def test_who_finds_no_room_to_wait_gets_retry_after(self) -> None:
        job = self.submit()
        with process_resources.current.wait_slots.limit_wait(None, 300.0):
            answer = self.wait(job["id"], wait_s=300)
        self.assertEqual((answer.json()["left"], answer["Retry-After"]), (1, "1"))

    def test_outputs_of_one_answer_are_bounded(self) -> None:
        jobs = Job.objects.bulk_create(
            Job(model="echo", inputs="x", status=Status.SUCCEEDED, output="n" * 100) for _ in range(5)
        )
        left, calls = {str(job.id) for job in jobs}, 0
        with patch.object(jobs_with_outputs, "MOST", 250):
            while left:
                shown = self.wait(*left).json()
                left -= {job["id"] for job in shown["items"]}
                self.assertEqual(shown["left"], len(left))
                calls += 1
        self.assertEqual(calls, 3)

    def test_of_large_outputs_few_are_measured(self) -> None:
        Job.objects.bulk_create(
            Job(model="echo", inputs="x", status=Status.SUCCEEDED, output="n" * 100) for _ in range(30)
        )
        found = Job.objects.order_by("pk")
        with patch.multiple(jobs_with_outputs, MOST=250, MEASURED=4), CaptureQueriesContext(connection) as queries:
            shown, is_cut = jobs_with_outputs.load_job_page(found, 30)
        self.assertEqual((shown, is_cut), (list(found[:2]), True))
        self.assertEqual(sum("COALESCE(" in query["sql"] for query in queries), 1)


class BulkWaitTests(ApiTestCase):
    def bulk(self, inputs: list[Any]) -> dict[str, Any]:
        shown: dict[str, Any] = self.post("/v1/jobs/bulk", {"model": "echo", "inputs": inputs}).json()
        return shown

    def test_the_wait_ends_when_all_its_jobs_are_finished(self) -> None:
        bulk = self.bulk(["a", "b", "c"])
        with self.worker():
            shown = WaitingRequest(lambda: self.client.get(f"/v1/jobs/bulk/{bulk['id']}?wait={PATIENCE_S:g}")).result()
        self.assertEqual((shown["finished"], shown["counts"]["succeeded"]), (True, 3))

    @override_settings(MAX_WAITING_REQUESTS=1)
    def test_who_finds_no_room_to_wait_gets_retry_after(self) -> None:
        bulk = self.bulk(["a"])
        with process_resources.current.wait_slots.limit_wait(None, 300.0):
            answer = self.client.get(f"/v1/jobs/bulk/{bulk['id']}?wait=300")
        self.assertEqual((answer.json()["finished"], answer["Retry-After"]), (False, "1"))

    def test_the_wait_ends_in_time(self) -> None:
        bulk = self.bulk(["a"])
        self.assertFalse(self.client.get(f"/v1/jobs/bulk/{bulk['id']}?wait=0.05").json()["finished"])

    def test_every_refused_input_is_reported(self) -> None:
        with patch("inference.submission.bulk.SHOWN_ERRORS", 2), patch("inference.submission.bulk.SHORT_DETAIL", 9):
            shown = self.bulk([None, "a", None, None])
        self.assertEqual([each["index"] for each in shown["refused"]], [0, 2, 3])
        self.assertEqual(len(shown["errors"]), 2)
        details = [each["detail"] for each in shown["refused"]]
        self.assertEqual([len(detail) > 9 for detail in details], [True, True, False], details)
        problem = self.assert_problem(
            self.post("/v1/jobs/bulk", {"model": "echo", "inputs": [None, None]}), 422, "invalid_input"
        )
        self.assertEqual([each["index"] for each in problem["refused"]], [0, 1])


class PageTests(ApiTestCase):
    def pages(self, address: str) -> list[list[dict[str, Any]]]:
        pages = []
        while address:
            page = self.client.get(address).json()
            pages.append(page["items"])
            address = page["next"]
        return pages

    def test_outputs_come_in_pages_that_are_bounded_by_their_size(self) -> None:
        made = Job.objects.bulk_create(
            Job(model="echo", inputs="x", status=Status.SUCCEEDED, output="é" * length)
            for length in (10, 300, 10, 10, 10, 300, 300)
        )
        with patch.object(jobs_with_outputs, "MOST", 250):
            pages = self.pages("/v1/jobs?outputs=1&limit=2")
        self.assertEqual([len(page) for page in pages], [1, 1, 2, 1, 1, 1])
        found = [(job["id"], len(job["output"])) for page in pages for job in page]
        self.assertEqual(found, [(str(job.id), len(job.output)) for job in reversed(made)])

    def test_jobs_without_output_are_among_them(self) -> None:
        bulk = self.post("/v1/jobs/bulk", {"model": "echo", "inputs": ["a", "bad", "c"]}).json()

        def answer(value: Any, parameters: dict[str, Any]) -> Any:
            return InvalidInput("not this one") if value == "bad" else echo_answer(value, parameters)

        with self.worker(answer):
            WaitingRequest(lambda: self.client.get(f"/v1/jobs/bulk/{bulk['id']}?wait={PATIENCE_S:g}")).result()
        (jobs,) = self.pages(f"/v1/jobs?bulk={bulk['id']}&outputs=1")
        shown = {job["bulk_index"]: (job["output"], job["error"] and job["error"]["code"]) for job in jobs}
        self.assertEqual(
            shown, {0: (echo.expected("a"), None), 1: (None, "invalid_input"), 2: (echo.expected("c"), None)}
        )

    def test_other_words_for_outputs_are_refused(self) -> None:
        self.assert_problem(self.client.get("/v1/jobs?outputs=yes"), 400, "bad_request")
        self.submit()
        self.assertNotIn("output", self.client.get("/v1/jobs?outputs=0").json()["items"][0])


class PlainTests(ApiTestCase):
    """As the model gave it: an input has the same answer alone and in a list."""

    def test_outputs_are_plain_wherever_that_is_preferred(self) -> None:
        models = Path(self.enterContext(tempfile.TemporaryDirectory())) / "models.toml"
        models.write_text(CLASSIFIER)
        labels = [{"label": "a", "score": 0.5}]
        with self.settings(MODELS_FILE=models), self.worker(lambda value, parameters: labels):
            for prefer, expected in (("", [labels]), ("outputs=plain", labels), ('wait=0, outputs="plain"', labels)):
                with self.subTest(prefer):
                    self.assertEqual(list(self.outputs(prefer)), [expected] * 7)

    def outputs(self, prefer: str) -> Any:
        headers = {"Prefer": prefer}
        yield self.post("/v1/models/texts", {"inputs": "x"}, headers=headers).json()
        job = self.post("/v1/jobs", {"model": "texts", "inputs": "x"}).json()
        path = f"/v1/jobs/{job['id']}"
        yield self.client.get(f"{path}/output?wait={PATIENCE_S:g}", headers=headers).json()
        yield self.client.get(path, headers=headers).json()["output"]
        yield self.post(f"{path}/cancel", headers=headers).json()["output"]
        again = {"Idempotency-Key": str(uuid4())}
        kept = self.post("/v1/jobs", {"model": "texts", "inputs": "x"}, headers=again).json()
        self.client.get(f"/v1/jobs/{kept['id']}?wait={PATIENCE_S:g}")
        known = self.post("/v1/jobs", {"model": "texts", "inputs": "x"}, headers={**headers, **again}).json()
        yield known["output"]
        yield self.post("/v1/jobs/wait", {"ids": [job["id"]]}, headers=headers).json()["items"][0]["output"]
        yield self.client.get("/v1/jobs?outputs=1&limit=1", headers=headers).json()["items"][0]["output"]
