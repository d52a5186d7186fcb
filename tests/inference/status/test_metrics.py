"""What Prometheus reads, by the parser of its own client."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from django.contrib.auth.models import User
from django.test import TestCase
from prometheus_client.parser import text_string_to_metric_families as parsed

from inference import clock, process_resources
from inference.figures import tallies, tally_rows
from inference.figures.sample import SERVICE
from inference.figures.tally_rows import make_datetime
from inference.models import Figure, Grain, Job, Status, Worker, WorkerState
from inference.status import counters, metrics
from inference.web_process.request_figures import RequestFigures
from tests.conditions import ago
from tests.inference.figures.agreement import drop_tallies


class MetricsTests(TestCase):
    def setUp(self) -> None:
        drop_tallies()

    def samples(self, family: str) -> list[tuple[str, dict[str, str], float]]:
        (found,) = (each for each in parsed(metrics.format_metrics().decode()) if each.name == f"inference_{family}")
        return [(sample.name, sample.labels, sample.value) for sample in found.samples]

    def test_a_long_count_is_exact_whatever_the_worker_is_called(self) -> None:
        name = 'rooms "and"\\floors\n2'
        Worker.objects.create(name=name, pid=7, state=WorkerState.READY, finished=1_234_567)
        labels = {"worker": name, "pid": "7"}
        self.assertEqual(self.samples("jobs_finished"), [("inference_jobs_finished_total", labels, 1_234_567)])
        self.assertEqual(self.samples("workers"), [("inference_workers", {"state": "ready"}, 1)])

    def test_jobs_are_counted_by_model_and_status(self) -> None:
        for model, status in (("echo", Status.QUEUED), ("echo", Status.QUEUED), ("other", Status.FAILED)):
            Job.objects.create(model=model, inputs="x", status=status, error_code="lost" * (status == Status.FAILED))
        self.assertEqual(
            self.samples("jobs_waiting"), [("inference_jobs_waiting", {"model": "echo", "status": "queued"}, 2)]
        )

    def test_the_oldest_job_is_not_younger_than_now_where_the_clock_was_set_back(self) -> None:
        Job.objects.create(model="echo", inputs="x", created_at=ago(days=-2))
        ((_, _, age_s),) = self.samples("oldest_queued_seconds")
        self.assertEqual(age_s, 0.0)

    def test_owners_of_whom_jobs_wait_are_counted(self) -> None:
        many = User.objects.create_user("many")
        for owner in (many, many, many, None):
            Job.objects.create(model="echo", inputs="x", owner=owner)
        labels = {"model": "echo"}
        self.assertEqual(self.samples("owners_waiting"), [("inference_owners_waiting", labels, 2)])
        self.assertEqual(self.samples("largest_owner_waiting"), [("inference_largest_owner_waiting", labels, 3)])

    def figure(self, model: str = "echo", *, grain: Grain = Grain.EVER, start_s: float = 0.0, **tally: Any) -> None:
        Figure.objects.create(grain=grain, start=make_datetime(start_s), model=model, tally=tally)

    def test_outcomes_are_those_of_all_rows_and_never_fewer(self) -> None:
        self.figure(ended={"succeeded": 1_234_567, "failed lost": 2})
        self.figure(grain=Grain.WRITTEN, ended={"succeeded": 1})
        found = {(labels["status"], labels["code"]): value for _, labels, value in self.samples("jobs")}
        self.assertEqual(found, {("succeeded", ""): 1_234_568, ("failed", "lost"): 2})

    def test_distributions_are_histograms_in_base_units(self) -> None:
        tally: tallies.Tally = {}
        for wait_s in (0.0005, 0.003, 0.5, 9000.0):
            tallies.add_value(tally, "wait", wait_s, unit=tallies.UNIT_S)
        for size in (1, 8, 8, 32):
            tallies.add_value(tally, "batch", size)
        self.figure(**tally)
        waits = self.samples("job_wait_seconds")
        buckets = {float(labels["le"]): value for name, labels, value in waits if name.endswith("_bucket")}
        self.assertEqual(
            [buckets[le] for le in (0.001, 0.002, 0.004, 0.512, 1048.58, float("inf"))], [1, 1, 2, 3, 3, 4]
        )
        [total] = [value for name, _, value in waits if name.endswith("_sum")]
        self.assertAlmostEqual(total, 9000.5035)
        sizes = {labels["le"]: value for name, labels, value in self.samples("batch_items") if "le" in labels}
        self.assertEqual([sizes[le] for le in ("1", "4", "8", "32")], [1, 1, 3, 4])

    def test_sums_and_what_needs_attention(self) -> None:
        self.figure(real=60, padded=80, tokens=5, cost={"off_s": 0.5, "real_s": 2.0})
        values = {
            name: self.samples(name)[0][2]
            for name in ("batch_tokens", "batch_padded_tokens", "generated_tokens", "cost_error_seconds")
        }
        self.assertEqual(list(values.values()), [60, 80, 5, 0.5])
        unserved = [value for _, labels, value in self.samples("attention") if labels["code"] == "ModelUnserved"]
        self.assertEqual(unserved, [1])

    def test_each_web_process_counts_the_requests_of_all(self) -> None:
        with (
            patch.object(clock, "estimate_now_s", return_value=1_000_000_005.0),
            patch.object(tally_rows, "flush_tallies"),
        ):
            for waiting in (3, 4):
                RequestFigures(partial(int, waiting)).write_figures()
                tally_rows.note_tally("echo", {"refused": {"queue_full": 2}})
        tally_rows.flush_tallies()
        start = Figure.objects.get(model="").start.timestamp()
        for now, waiting in (
            (start + counters.WRITE_DELAY_S, 7),
            (start + tally_rows.TICK_S + counters.WRITE_DELAY_S, 0),
        ):
            with patch.object(clock, "estimate_now_s", return_value=now):
                self.assertEqual(self.samples("requests_waiting"), [("inference_requests_waiting", {}, waiting)])
        (refused,) = self.samples("rejections")
        self.assertEqual(refused, ("inference_rejections_total", {"model": "echo", "code": "queue_full"}, 4))

    def test_answers_are_counted_by_address_and_dialect_but_for_probes(self) -> None:
        self.client.get(f"/v1/jobs/{uuid4()}")
        self.client.get("/v1/jobs/none")
        self.client.generic("BREW", "/v1/embeddings/")
        self.client.get("/healthz")
        self.client.get("/no/such/address")
        for address in ("/v2/embed", "/embed", "/v1/models/m/rerank"):
            self.client.post(address)
        self.client.get("/v1/models", headers={"X-Stainless-Lang": "python"})
        tally_rows.note_tally(SERVICE, {"requests": {"GET /v1/models 200": 3}})  # as the version before
        tally_rows.flush_tallies()
        expected = {
            ("GET", "/v1/jobs/JOB_ID", "401", "service"): 2,
            ("other", "/v1/embeddings", "401", "openai"): 1,
            ("POST", "/v2/embed", "401", "cohere"): 1,
            ("POST", "/embed", "401", "tei"): 1,
            ("POST", "/v1/models/NAME/rerank", "401", "tei"): 1,
            ("GET", "/v1/models", "401", "openai"): 1,
            ("GET", "/v1/models", "200", ""): 3,
        }
        names = ("method", "route", "status", "dialect")
        found = {tuple(labels[name] for name in names): count for _, labels, count in self.samples("requests")}
        self.assertEqual(found, expected)

    def test_what_waits_in_this_process_counts_at_once(self) -> None:
        with (
            process_resources.current.listener.expect_finish(uuid4()),
            process_resources.current.listener.expect_finish(uuid4()),
        ):
            self.assertEqual(self.samples("requests_waiting"), [("inference_requests_waiting", {}, 2)])

    def test_what_is_counted_of_nothing_has_its_description(self) -> None:
        self.assertEqual(self.samples("replicas_ready"), [])
        self.assertEqual(self.samples("requests_waiting"), [("inference_requests_waiting", {}, 0)])

    def test_what_is_generated_step_by_step(self) -> None:
        figures = {
            "rows": 3,
            "room": 700,
            "tokens": 1000,
            "tokens_per_s": 12.5,
            "first_token_s": {"p50": 0.2, "p95": 1},
        }
        Worker.objects.create(name="w", pid=7, state=WorkerState.READY, generation={"story": figures})
        Worker.objects.create(name="old", pid=8, state=WorkerState.READY, generation=None)
        labels = {"worker": "w", "pid": "7", "model": "story"}
        self.assertEqual(self.samples("cache_room_tokens"), [("inference_cache_room_tokens", labels, 700)])
        self.assertEqual(self.samples("streams_open"), [("inference_streams_open", {}, 0)])
