"""What Prometheus reads, by the parser of its own client."""

from __future__ import annotations

from django.test import TestCase
from prometheus_client.parser import text_string_to_metric_families as parsed

from inference.models import Job, Status, Worker, WorkerState
from inference.status import metrics


class MetricsTests(TestCase):
    def setUp(self) -> None:
        metrics.forget()
        self.addCleanup(metrics.forget)

    def samples(self, family: str) -> list[tuple[str, dict[str, str], float]]:
        (found,) = (each for each in parsed(metrics.text().decode()) if each.name == f"inference_{family}")
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
        recent = {"model": "other", "status": "failed", "code": "lost"}
        self.assertEqual(self.samples("jobs_recent"), [("inference_jobs_recent", recent, 1)])

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
        self.assertEqual(self.samples("tokens"), [("inference_tokens_total", labels, 1000)])
        self.assertEqual(self.samples("cache_room_tokens"), [("inference_cache_room_tokens", labels, 700)])
        self.assertEqual(
            [(sample["quantile"], value) for _, sample, value in self.samples("first_token_seconds")],
            [("0.5", 0.2), ("0.95", 1)],
        )
        self.assertEqual(self.samples("streams_open"), [("inference_streams_open", {}, 0)])
