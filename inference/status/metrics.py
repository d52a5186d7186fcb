"""The metrics that /metrics returns to Prometheus: queues and workers as they are now, and counters from rows.

Reading costs the same whichever process is asked, and the metrics survive a restart. A job that runs in parts counts by
its parts while it waits and runs, and as one job when it has ended.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from django.db.models import Count
from prometheus_client import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from inference import process
from inference.fields.worker_documents import GenerationSnapshot
from inference.figures import sample
from inference.models import Job, Status, Worker
from inference.status import attention, counters, workers
from inference.status.workers import Remembered

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

Sample = tuple[dict[str, str], float]


class MetricsCollector:
    """A collector of prometheus_client, which reads its families when they are asked for."""

    def collect(self) -> Iterator[Metric]:
        yield from _collect_row_metrics()
        yield _make_family("streams_open", "Streams that this web process writes.", [({}, len(process.current.hub))])


def format_metrics() -> bytes:
    """Return the metrics in Prometheus's text format."""
    return generate_latest(MetricsCollector())


@Remembered
def _collect_row_metrics() -> list[Metric]:
    living = list(workers.select_living())
    owned = _count_jobs_of_owners()
    queued, ages = sample.count_queued_jobs()
    running = sample.count_running_jobs()
    waiting = [*_sample_models(queued, status=Status.QUEUED), *_sample_models(running, status=Status.RUNNING)]
    return [
        _make_family("jobs_waiting", "Jobs by model and status.", waiting),
        _make_family("oldest_queued_seconds", "Age of the oldest queued job.", _sample_models(ages)),
        _make_family(
            "owners_waiting",
            "Owners of whom jobs wait.",
            _sample_models({model: len(jobs) for model, jobs in owned.items()}),
        ),
        _make_family(
            "largest_owner_waiting",
            "Jobs that wait of the owner with most.",
            _sample_models({model: max(jobs) for model, jobs in owned.items()}),
        ),
        _make_family("workers", "Living workers by state.", _sample_states(living)),
        _make_family("replicas_ready", "Replicas with their models loaded.", _sample_workers(living, "replicas_ready")),
        _make_family("replicas_busy", "Replicas that run a batch.", _sample_workers(living, "replicas_busy")),
        _make_family("jobs_held", "Jobs that a worker has fetched and not started.", _sample_workers(living, "held")),
        _make_family(
            "jobs_finished_total", "Jobs since the worker's start.", _sample_workers(living, "finished"), "counter"
        ),
        _make_family(
            "generating",
            "Rows that are generated step by step now.",
            _sample_generation(living, lambda figures: figures.rows),
        ),
        _make_family(
            "cache_room_tokens",
            "Free tokens of cache where rows are generated.",
            _sample_generation(living, lambda figures: figures.room),
        ),
        _make_family(
            "tokens_per_second",
            "Generated in the last seconds.",
            _sample_generation(living, lambda figures: figures.tokens_per_s),
        ),
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


def _sample_generation(living: Iterable[Worker], figure_of: Callable[[GenerationSnapshot], float]) -> Iterator[Sample]:
    for worker in living:
        for model, figures in worker.generation.items():
            yield {"worker": worker.name, "pid": str(worker.pid), "model": model}, figure_of(figures)


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
