"""The metrics that /metrics returns to Prometheus: queues and workers as they are now, and counters from rows.

Reading costs the same whichever process is asked, and the metrics survive a restart. A job that runs in parts counts by
its parts while it waits and runs, and as one job when it has ended.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from django.db.models import Count
from prometheus_client import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from inference import process_resources
from inference.figures import sample
from inference.models import Job, Status, Worker
from inference.status import attention, counters, workers
from inference.status.workers import Remembered

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

Sample = tuple[dict[str, str], float]

OF_WORKERS = (  # name, description and kind of a metric, and the column of a worker's row that it shows
    ("replicas_ready", "Replicas with their models loaded.", "gauge", "replicas_ready"),
    ("replicas_busy", "Replicas that run a batch.", "gauge", "replicas_busy"),
    ("jobs_held", "Jobs that a worker has fetched and not started.", "gauge", "held"),
    ("jobs_finished_total", "Jobs since the worker's start.", "counter", "finished"),
)
OF_GENERATION = (  # the same of a model that generates step by step, all gauges
    ("generating", "Rows that are generated step by step now.", "rows"),
    ("cache_room_tokens", "Free tokens of cache where rows are generated.", "room"),
    ("tokens_per_second", "Generated in the last seconds.", "tokens_per_s"),
)


class MetricsCollector:
    """A collector of prometheus_client, which reads its families when they are asked for."""

    def collect(self) -> Iterator[Metric]:
        yield from _collect_row_metrics()
        yield _make_family(
            "streams_open", "Streams that this web process writes.", [({}, len(process_resources.current.hub))]
        )


def format_metrics() -> bytes:
    """Return the metrics in Prometheus's text format."""
    return generate_latest(MetricsCollector())


@Remembered
def _collect_row_metrics() -> list[Metric]:
    living = list(workers.select_living_workers())
    owned = _count_jobs_of_owners()
    owners = {model: len(jobs) for model, jobs in owned.items()}
    largest = {model: max(jobs) for model, jobs in owned.items()}
    queued, ages = sample.count_queued_jobs()
    running = sample.count_running_jobs()
    waiting = [*_sample_models(queued, status=Status.QUEUED), *_sample_models(running, status=Status.RUNNING)]
    return [
        _make_family("jobs_waiting", "Jobs by model and status.", waiting),
        _make_family("oldest_queued_seconds", "Age of the oldest queued job.", _sample_models(ages)),
        _make_family("owners_waiting", "Owners of whom jobs wait.", _sample_models(owners)),
        _make_family("largest_owner_waiting", "Jobs that wait of the owner with most.", _sample_models(largest)),
        _make_family("workers", "Living workers by state.", _sample_states(living)),
        *(_make_family(name, text, _sample_workers(living, field), kind) for name, text, kind, field in OF_WORKERS),
        *(_make_family(name, text, _sample_generation(living, field)) for name, text, field in OF_GENERATION),
        _make_family("model_memory_bytes", "What a model takes of a device.", _sample_memory(living)),
        _make_family("attention", "1 while this needs attention, as the admin's first page says.", _sample_attention()),
        *counters.collect_counters(),
    ]


def _sample_models(figures: Mapping[str, float], **labels: str) -> Iterator[Sample]:
    for model, figure in figures.items():
        yield {"model": model, **labels}, figure


def _count_jobs_of_owners() -> Mapping[str, Collection[int]]:
    queued = Job.objects.filter(status=Status.QUEUED, parts=None).order_by()
    jobs: dict[str, list[int]] = defaultdict(list)
    for model, _, count in queued.values_list("model", "owner").annotate(Count("pk")):
        jobs[model].append(count)
    return jobs


def _sample_states(living: Iterable[Worker]) -> Iterator[Sample]:
    for state, count in Counter(worker.state for worker in living).items():
        yield {"state": state}, count


def _sample_workers(living: Iterable[Worker], field: str) -> Iterator[Sample]:
    for worker in living:
        yield {"worker": worker.name, "pid": str(worker.pid)}, getattr(worker, field)


def _sample_generation(living: Iterable[Worker], field: str) -> Iterator[Sample]:
    for worker in living:
        for model, figures in worker.generation.items():
            yield {"worker": worker.name, "pid": str(worker.pid), "model": model}, getattr(figures, field)


def _sample_memory(living: Iterable[Worker]) -> Iterator[Sample]:
    for worker in living:
        for index, replica in worker.replicas.items():
            for model, taken in replica.memory.items():
                labels = {"worker": worker.name, "pid": str(worker.pid), "replica": index, "model": model}
                yield {**labels, "device": replica.device}, taken


def _sample_attention() -> Iterator[Sample]:
    found = {item.code for item in attention.find_items()}
    for code in attention.CODES:
        yield {"code": code}, code in found


def _make_family(name: str, description: str, samples: Iterable[Sample], kind: str = "gauge") -> Metric:
    family = Metric(f"inference_{name.removesuffix('_total')}", description, kind)
    for labels, value in samples:
        family.add_sample(f"inference_{name}", labels, value)
    return family
