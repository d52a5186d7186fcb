import datetime
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from api.auth import Principal
from api.requests import job_pages
from inference.fields.ids import make_first_id, make_row_id
from inference.models import Bulk, Job, Status, Worker
from inference.upkeep import retention
from inference.values.priority import Priority
from tests.api.base import ApiTestCase
from tests.conditions import ago


def make(count: int = 1, **fields: Any) -> list[Job]:
    return Job.objects.bulk_create(Job(**{"model": "echo", "inputs": "x", **fields}) for _ in range(count))


class PageTests(ApiTestCase):
    def pages(self, address: str) -> list[str]:
        seen = []
        while address:
            page = self.client.get(address).json()
            seen += [job["id"] for job in page["items"]]
            address = page["next"]
        return seen

    def test_pages_show_every_job_once_the_newest_first_while_jobs_arrive(self) -> None:
        made = [str(job.id) for job in make(7)]
        first = self.client.get("/v1/jobs?limit=3").json()
        make(2)
        seen = [job["id"] for job in first["items"]] + self.pages(first["next"])
        self.assertEqual(seen, made[::-1])

    def test_filters_are_kept_from_page_to_page(self) -> None:
        wanted = make(3, status=Status.FAILED)
        make(3)
        seen = self.pages("/v1/jobs?limit=2&status=failed&model=echo")
        self.assertEqual(set(seen), {str(job.id) for job in wanted})

    def test_a_time_range_is_a_range_of_ids(self) -> None:
        yesterday = ago(days=1)
        old = Job.objects.create(id=UUID(int=make_first_id(yesterday).int + 1), model="echo", inputs="x")
        new = make()[0]
        middle = (ago(hours=1)).isoformat()
        for name, wanted in (("created_before", old), ("created_after", new)):
            with self.subTest(name):
                answer = self.client.get("/v1/jobs", {name: middle})
                self.assertEqual([job["id"] for job in answer.json()["items"]], [str(wanted.id)])

    def test_those_of_a_bulk_are_found_by_it_and_shown_to_its_owner(self) -> None:
        ada, bob = (Principal(user=User.objects.create_user(name)) for name in ("ada", "bob"))
        bulk = Bulk.objects.create(model="echo", total=2, owner=ada.user)
        wanted = make(2, bulk=bulk, owner=ada.user)
        make(3, owner=ada.user)
        for query in ({}, {"cursor": str(make_row_id())}, {"status": "queued"}):
            parameters = {"bulk": str(bulk.id), **query}
            with CaptureQueriesContext(connection) as queries:
                self.assertEqual(job_pages.load_page(ada, parameters)[0], wanted[::-1])
            self.assertEqual(job_pages.load_page(bob, parameters)[0], [])
            self.assertEqual(job_pages.load_page(Principal(), parameters)[0], [])
            if connection.vendor == "sqlite":  # it keeps no statistics
                with connection.cursor() as cursor:
                    cursor.execute(f"EXPLAIN QUERY PLAN {queries[-1]['sql']}")
                    self.assertIn("job_by_bulk", str(cursor.fetchall()))

    def test_outputs_are_left_out_of_lists(self) -> None:
        make(output=["long"], status=Status.SUCCEEDED)
        self.assertNotIn("output", self.client.get("/v1/jobs").json()["items"][0])

    def test_what_is_wrong_in_a_query_is_400(self) -> None:
        wrong = ("limit=0", "limit=501", "limit=x", "cursor=x", "status=lost", "model=A B", "bulk=7",
                 "created_after=yesterday", "created_after=2026-01-01T00:00:00", "created_before=1969-01-01T00:00:00Z",
                 "created_after=2026-13-01T00:00:00Z", "model=%00", "unknown=1")  # fmt: skip
        for query in wrong:
            with self.subTest(query):
                self.assert_problem(self.client.get(f"/v1/jobs?{query}"), 400, "bad_request")


class PlaceTests(ApiTestCase):
    def position(self, job: Job) -> int:
        position: int = self.client.get(f"/v1/jobs/{job.id}").json()["position"]
        return position

    def test_those_before_and_those_of_higher_priority_count(self) -> None:
        first, second = make(2)
        low, high = make(priority=Priority.LOW)[0], make(priority=Priority.HIGH)[0]
        self.assertEqual([self.position(job) for job in (high, first, second, low)], [1, 2, 3, 4])

    def test_the_wait_is_estimated_from_the_measured_speed(self) -> None:
        self.idle_worker()
        Worker.objects.update(speeds={"echo": 2.0}, replicas_ready=2)
        job = make(40)[-1]
        answer = self.client.get(f"/v1/jobs/{job.id}")
        self.assertEqual((answer.json()["estimated_wait_s"], answer["Retry-After"]), (10.0, "10"))

    def test_far_behind_the_place_is_estimated_from_the_time_of_arrival(self) -> None:
        now = ago()
        ids = [make_first_id(now - datetime.timedelta(seconds=5000 - number)).int + 1 for number in range(5000)]
        Job.objects.bulk_create([Job(id=UUID(int=key), model="echo", inputs="x") for key in ids], batch_size=500)
        position = self.position(Job.objects.get(pk=UUID(int=ids[4000])))
        self.assertAlmostEqual(position, 4000, delta=50)

    @override_settings(MAX_ESTIMATED_WAIT_S=10)
    def test_a_wait_that_would_be_too_long_is_503_at_once(self) -> None:
        self.idle_worker()
        Worker.objects.update(speeds={"echo": 1.0}, replicas_ready=1)
        make(15)
        answer = self.post("/v1/jobs", {"model": "echo", "inputs": "x"})
        low = self.post("/v1/jobs", {"model": "echo", "inputs": "x", "priority": "low"})
        with self.settings(MAX_ESTIMATED_WAIT_S=0):
            unlimited = self.post("/v1/jobs", {"model": "echo", "inputs": "x"})
        self.assert_problem(answer, 503, "overloaded")
        self.assertEqual(answer["Retry-After"], "5")
        self.assertEqual((low.status_code, unlimited.status_code), (202, 202))


@override_settings(JOB_RETENTION_DAYS=30)
class RetentionTests(ApiTestCase):
    def old_id(self) -> UUID:
        return UUID(int=make_first_id(ago(days=31)).int + 5)

    def test_an_id_from_before_the_retention_time_is_410(self) -> None:
        self.assert_problem(self.client.get(f"/v1/jobs/{self.old_id()}"), 410, "job_gone")
        self.assert_problem(self.client.get(f"/v1/jobs/{make_row_id()}"), 404, "job_not_found")

    def test_old_finished_jobs_are_removed_and_nothing_else(self) -> None:
        old = Job.objects.create(id=self.old_id(), model="echo", inputs="x", status=Status.SUCCEEDED)
        waiting = Job.objects.create(id=UUID(int=self.old_id().int + 1), model="echo", inputs="x")
        new = make(status=Status.SUCCEEDED)[0]
        self.assertEqual(retention.Sweep().remove_chunk(), 1)
        self.assertEqual(set(Job.objects.values_list("pk", flat=True)), {waiting.pk, new.pk})
        self.assert_problem(self.client.get(f"/v1/jobs/{old.pk}"), 410, "job_gone")

    @override_settings(JOB_RETENTION_DAYS=0)
    def test_nothing_is_removed_where_jobs_are_kept_for_ever(self) -> None:
        kept = Job.objects.create(id=self.old_id(), model="echo", inputs="x", status=Status.SUCCEEDED)
        retention.Sweeper().sweep()
        self.assertEqual(list(Job.objects.all()), [kept])
        self.assert_problem(self.client.get(f"/v1/jobs/{make_row_id()}"), 404, "job_not_found")
