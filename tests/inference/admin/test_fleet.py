"""The pages of models, workers and batches, and what operators do there."""

from __future__ import annotations

import datetime
import uuid
from typing import Any
from unittest.mock import patch
from uuid import UUID

from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from inference import clock
from inference.batching.costs import CostModel
from inference.fields.worker_documents import LOADING, CostSnapshot
from inference.models import Job, PausedModel, Status, Worker, WorkerState
from inference.status import workers
from tests.conditions import ago
from tests.inference.test_admin import MARKUP, AdminCase, make_job, make_worker

MODELS = reverse("admin:inference_pausedmodel_changelist")
WORKERS = reverse("admin:inference_worker_changelist")
BATCHES = reverse("admin:inference_job_batches")


def model_page(name: str) -> str:
    return reverse("admin:inference_pausedmodel_change", args=[name])


def worker_page(worker: Worker) -> str:
    return reverse("admin:inference_worker_change", args=[worker.pk])


def learnt() -> CostSnapshot:
    model = CostModel()
    for size in (1, 4, 16):
        for length in (8, 64):
            model.learn_call(size, length, 0.001 + size * length * 1e-5)
    return model.make_snapshot()


def entry(**values: Any) -> dict[str, Any]:
    known = {"name": "embeddings", "model": "a/b", "revision": "714eb0f", "digest": "d", "state": "ready", "why": ""}
    return {**known, "memory": 90 * 2**20, **values}


class FleetCase(AdminCase):
    def steer(self, page: str, action: str, user: User | None = None) -> int:
        if user:
            self.client.force_login(user)
        url = page.replace("/change/", "/steer/")
        return self.client.post(url, {"action": action}).status_code


class ModelTests(FleetCase):
    def test_the_list_shows_each_model_and_whether_it_is_served(self) -> None:
        make_worker(model_names=["embeddings"], catalog={"models": [entry()]}, speeds={"embeddings": 250.0})
        make_job()
        page = self.text(MODELS)
        for shown in ("embeddings", "714eb0f", "badge-ready", "1 of 1,000", "250.0"):
            self.assertIn(shown, page)

    def test_one_is_shown_with_its_entry_and_where_it_runs_and_why_it_does_not(self) -> None:
        good = {"0": {"pid": 8, "device": "cpu", "models": {"embeddings": "ready"},
                      "notes": {"embeddings": "openvino, agrees to 1e-4"}}}  # fmt: skip
        make_worker(catalog={"models": [entry()]}, replicas=good, costs={"embeddings": learnt()})
        make_worker(catalog={"models": [entry(state="failed", why="no weights <there>")]})
        job = make_job(created_at=ago(minutes=5))
        with patch.object(clock, "estimate_now_s", return_value=job.created_at.timestamp() + 300):
            page = self.text(model_page("embeddings"))
        for shown in ("90 MiB", "openvino, agrees to 1e-4", "no weights &lt;there&gt;", "max_batch_tokens", "8192",
                      "the oldest for 5 min", "parameters.normalize", "type = &quot;boolean&quot;"):  # fmt: skip
            self.assertIn(shown, page)
        self.assertEqual(page.count("<circle"), 6)
        self.assertIn("16 of 64 tokens: 11 ms", page)
        self.assertIn("6 calls, of 1 ms to 11 ms", page)

    def test_it_shows_the_owners_of_waiting_jobs_and_for_how_long_the_next_of_each_waits(self) -> None:
        make_worker(speeds={"embeddings": 10.0})
        many, few = (User.objects.create_user(name) for name in ("<many>", "few"))
        for owner, priority, count in ((many, 2, 30), (many, 1, 2), (few, 3, 1)):
            for _ in range(count):
                make_job(owner=owner, priority=priority)
        page = self.text(model_page("embeddings"))
        self.assertRegex(page, r"(?s)&lt;many&gt;.*2 high, 30 normal.*3\.[0-9] s.*few.*1 low.*[0-9]+ ms")
        self.assertIn(f"owner={many.pk}", page)
        Job.objects.all().delete()
        self.assertNotIn("Waiting jobs by owner", self.text(model_page("embeddings")))

    def test_one_that_nobody_knows_is_not_found(self) -> None:
        self.assertEqual(self.client.get(model_page("nothing")).status_code, 404)
        self.steer(model_page("nothing"), "pause")
        self.assertFalse(PausedModel.objects.exists())

    def test_pausing_and_resuming_is_noted(self) -> None:
        for _ in range(2):
            self.steer(model_page("embeddings"), "pause")
        self.assertEqual(PausedModel.objects.get().paused_by, User.objects.get())
        self.assertIn("Paused embeddings. This takes effect within seconds.", self.text(MODELS))
        self.assertIn("badge-paused", self.text(MODELS))
        self.assertIn("by operator", self.text(model_page("embeddings")))
        self.assertIn("has been paused", self.text(reverse("admin:inference_job_change", args=[make_job().pk])))
        self.steer(model_page("embeddings"), "resume")
        self.assertFalse(PausedModel.objects.exists())
        self.assertEqual(
            sorted(LogEntry.objects.values_list("object_id", "change_message")),
            [("embeddings", "Paused."), ("embeddings", "Resumed.")],
        )
        self.assertRegex(self.text(model_page("embeddings")), r"(?s)by operator: Resumed\..*by operator: Paused\.")

    def test_who_may_only_look_neither_pauses_nor_drains(self) -> None:
        worker, viewer = make_worker(), User.objects.create_user("viewer", is_staff=True)
        viewer.user_permissions.set(Permission.objects.filter(codename__startswith="view_"))
        for page in (model_page("embeddings"), worker_page(worker)):
            for action in ("pause", "drain", "resume"):
                self.assertEqual(self.steer(page, action, viewer), 403)
            self.assertNotIn('name="action"', self.text(page))
            self.assertEqual(self.client.get(page.replace("/change/", "/steer/")).status_code, 405)
        self.client.force_login(User.objects.create_user("clerk", is_staff=True))
        for page in (MODELS, model_page("embeddings"), worker_page(worker), BATCHES):
            self.assertEqual(self.client.get(page).status_code, 403)


class WorkerTests(FleetCase):
    def test_a_gpu_that_another_worker_of_its_host_has_is_shown(self) -> None:
        first = make_worker(name="a@host", devices=["cuda:0"])
        self.assertNotIn("b@host", self.text(worker_page(first)))
        make_worker(name="b@host", devices=["cuda:0", "cuda:1"])
        self.assertIn("cuda:0 with b@host", self.text(worker_page(first)))

    def test_its_replicas_have_device_memory_models_and_why_not(self) -> None:
        replica = {"pid": 8, "device": "cuda:1", "memory": {"embeddings": 91 * 2**20},
                   "models": {"embeddings": "ready", "fill": "no <package>", "late": LOADING}}  # fmt: skip
        worker = make_worker(replicas={"0": replica, "10": replica, "2": replica}, finished=3150)
        page = self.text(worker_page(worker))
        for shown in ("cuda:1", "91 MiB", "no &lt;package&gt;", "badge-failed", "badge-loading",
                      "3,150 jobs since its start"):  # fmt: skip
            self.assertIn(shown, page)
        self.assertLess(page.index("<th>2</th>"), page.index("<th>10</th>"))

    def test_one_is_drained_and_resumed(self) -> None:
        worker = make_worker()
        for action, wanted in (("drain", True), ("drain", True), ("resume", False)):
            self.steer(worker_page(worker), action)
            worker.refresh_from_db()
            self.assertEqual(worker.is_to_rest, wanted)
        self.assertEqual(LogEntry.objects.count(), 2)

    def test_one_that_rests_lives_and_serves_nothing(self) -> None:
        for state in (WorkerState.DRAINING, WorkerState.DRAINED):
            make_worker(state=state, model_names=[])
        self.assertEqual(workers.select_living_workers().count(), 2)
        self.assertIn("badge-drained", self.text(WORKERS))

    def test_one_that_ended_has_neither_ready_replicas_nor_a_rate(self) -> None:
        worker = make_worker(state=WorkerState.STOPPED, replicas_total=2, replicas_ready=2, jobs_per_s=5.5)
        for page in (WORKERS, worker_page(worker), "/admin/"):
            shown = self.text(page)
            self.assertIn("badge-stopped", shown)
            self.assertNotRegex(shown, r"2 of 2 ready|\b5\.5\b", page)

    def test_those_that_are_gone_are_folded_away_after_an_hour(self) -> None:
        old = ago(minutes=61)
        living, gone = make_worker(name="living"), make_worker(name="gone", state=WorkerState.GONE)
        folded = make_worker(name="folded", state=WorkerState.STOPPED, heartbeat_at=old)

        def listed(**query: str) -> set[Worker]:
            return set(self.client.get(WORKERS, query).context["cl"].result_list)

        self.assertEqual(listed(), {living, gone})
        self.assertEqual(listed(ended="all"), {living, gone, folded})
        self.assertEqual(listed(state__exact="stopped"), {folded})
        self.assertEqual(self.client.get(worker_page(folded)).status_code, 200)


class BatchTests(FleetCase):
    def run_together(self, *lengths: int, **values: Any) -> UUID:
        batch, begun = uuid.uuid4(), ago(3)
        common = {
            "batch": batch, "batch_size": len(lengths), "status": Status.SUCCEEDED, "started_at": begun,
            "finished_at": begun + datetime.timedelta(milliseconds=420), "device": "cuda:0", **values,
        }  # fmt: skip
        for length in lengths:
            make_job(length=length, **common)
        return batch

    def test_one_shows_what_ran_together_and_where_and_for_how_long(self) -> None:
        worker = make_worker(costs={"embeddings": learnt()})
        batch = self.run_together(10, 20, 30, worker=worker.pk)
        self.assertIn(f"…{batch.hex[-8:]}", self.text(BATCHES))
        page = self.text(reverse("admin:inference_job_batch", args=[batch]))
        for shown in (
            "3 items of 3 jobs",
            "worker@host",
            "Padding: 33 %",
            "420 ms",
            "Expected time of such a batch now",
        ):
            self.assertIn(shown, page)
        self.assertEqual(page.count("badge-succeeded"), 3)
        self.assertEqual(self.client.get(reverse("admin:inference_job_batch", args=[uuid.uuid4()])).status_code, 404)

    def test_a_batch_that_jobs_joined_says_how_many_ran_at_once(self) -> None:
        worker = make_worker(costs={"embeddings": learnt()})
        batch = self.run_together(10, 20, 30, 40, 50, batch_size=2, worker=worker.pk)
        page = self.text(reverse("admin:inference_job_batch", args=[batch]))
        self.assertIn("5 jobs, at most 2 items at once", page)
        self.assertNotIn("Padding:", page)
        self.assertNotIn("Expected time", page)
        self.text(BATCHES)

    def test_lines_of_a_file_that_were_refused_ran_in_no_batch(self) -> None:
        batch = self.run_together(1, status=Status.FAILED, started_at=None)
        self.assertNotIn(batch.hex[-8:], self.text(BATCHES))
        job = Job.objects.get()
        for page in (reverse("admin:inference_job_changelist"), reverse("admin:inference_job_change", args=[job.pk])):
            self.assertNotIn(str(batch), self.text(page))

    def test_a_worker_that_is_gone_or_reports_no_costs_leaves_them_out(self) -> None:
        for worker in (uuid.uuid4(), make_worker(costs=None).pk, None):
            batch = self.run_together(5, worker=worker, finished_at=None, status=Status.RUNNING)
            self.assertIn("The batch runs", self.text(reverse("admin:inference_job_batch", args=[batch])))
        self.text(BATCHES)

    def test_the_list_costs_the_same_however_many_jobs_there_are(self) -> None:
        self.run_together(*range(1, 40))
        Job.objects.bulk_create(Job(model="embeddings", inputs="x") for _ in range(100))
        with CaptureQueriesContext(connection) as queries:
            self.client.get(BATCHES)
        of_jobs = [query["sql"] for query in queries if 'FROM "inference_job"' in query["sql"]]
        self.assertEqual(len(of_jobs), 3)
        for sql in of_jobs:
            self.assertIn("LIMIT", sql)
            self.assertNotIn('"inference_job"."output"', sql)


class WrittenTests(FleetCase):
    def test_nothing_that_was_written_acts_on_the_reader(self) -> None:
        for evil in MARKUP:
            model = entry(name=evil, why=evil, revision=evil, model=evil)
            worker = make_worker(
                name=evil,
                error=evil,
                devices=[evil],
                model_names=[evil],
                catalog={"models": [model], "problem": evil},
                costs={evil: learnt()},
                speeds={evil: 1.0},
                replicas={"0": {"pid": 1, "device": evil, "models": {evil: evil}, "notes": {evil: evil}}},
            )
            job = make_job(model=evil, worker=worker.pk, batch=uuid.uuid4(), status="failed", device=evil[:20])
            for page in (MODELS, WORKERS, BATCHES, worker_page(worker), model_page(evil),
                         reverse("admin:inference_job_batch", args=[job.batch])):  # fmt: skip
                self.assertNotIn(evil, self.text(page), page)
            worker.delete()
            job.delete()
