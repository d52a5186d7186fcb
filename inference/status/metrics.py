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
        yield from _of_rows()
        yield _family("streams_open", "Streams that this web process writes.", [({}, len(process.current.hub))])


def format_metrics() -> bytes:
    """Return the metrics in Prometheus's text format."""
    return generate_latest(MetricsCollector())


@Remembered
def _of_rows() -> list[Metric]:
    living = list(workers.select_living())
    owned = _jobs_of_owners()
    queued, ages = sample.count_queued_jobs()
    running = sample.count_running_jobs()
    waiting = [*_by_model(queued, status=Status.QUEUED), *_by_model(running, status=Status.RUNNING)]
    return [
        _family("jobs_waiting", "Jobs by model and status.", waiting),
        _family("oldest_queued_seconds", "Age of the oldest queued job.", _by_model(ages)),
        _family(
            "owners_waiting",
            "Owners of whom jobs wait.",
            _by_model({model: len(jobs) for model, jobs in owned.items()}),
        ),
        _family(
            "largest_owner_waiting",
            "Jobs that wait of the owner with most.",
            _by_model({model: max(jobs) for model, jobs in owned.items()}),
        ),
        _family("workers", "Living workers by state.", _states(living)),
        _family("replicas_ready", "Replicas with their models loaded.", _each(living, "replicas_ready")),
        _family("replicas_busy", "Replicas that run a batch.", _each(living, "replicas_busy")),
        _family("jobs_held", "Jobs that a worker has fetched and not started.", _each(living, "held")),
        _family("jobs_finished_total", "Jobs since the worker's start.", _each(living, "finished"), "counter"),
        _family(
            "generating", "Rows that are generated step by step now.", _generation(living, lambda figures: figures.rows)
        ),
        _family(
            "cache_room_tokens",
            "Free tokens of cache where rows are generated.",
            _generation(living, lambda figures: figures.room),
        ),
        _family(
            "tokens_per_second",
            "Generated in the last seconds.",
            _generation(living, lambda figures: figures.tokens_per_s),
        ),
        _family("model_memory_bytes", "What a model takes of a device.", _memory(living)),
        _family("attention", "1 while this needs attention, as the admin's first page says.", _attention()),
        *counters.collect_counters(),
    ]


def _by_model(figures: Mapping[str, float], **labels: str) -> Iterator[Sample]:
    for model, figure in figures.items():
        yield {"model": model, **labels}, figure


def _jobs_of_owners() -> Mapping[str, Collection[int]]:
    """Count the waiting jobs of each owner, by model."""
    queued = Job.objects.filter(status=Status.QUEUED, parts=None).order_by()
    jobs: dict[str, list[int]] = defaultdict(list)
    for model, _, count in queued.values_list("model", "owner").annotate(Count("pk")):
        jobs[model].append(count)
    return jobs


def _states(living: Iterable[Worker]) -> Iterator[Sample]:
    for state, count in Counter(worker.state for worker in living).items():
        yield {"state": state}, count


def _each(living: Iterable[Worker], field: str) -> Iterator[Sample]:
    for worker in living:
        yield {"worker": worker.name, "pid": str(worker.pid)}, getattr(worker, field)


def _generation(living: Iterable[Worker], figure_of: Callable[[GenerationSnapshot], float]) -> Iterator[Sample]:
    for worker in living:
        for model, figures in worker.generation.items():
            yield {"worker": worker.name, "pid": str(worker.pid), "model": model}, figure_of(figures)


def _memory(living: Iterable[Worker]) -> Iterator[Sample]:
    for worker in living:
        for index, replica in worker.replicas.items():
            for model, taken in replica.memory.items():
                labels = {"worker": worker.name, "pid": str(worker.pid), "replica": index, "model": model}
                yield {**labels, "device": replica.device}, taken


def _attention() -> Iterator[Sample]:
    found = {item.code for item in attention.find_items()}
    for code in attention.CODES:
        yield {"code": code}, code in found


def _family(name: str, description: str, samples: Iterable[Sample], kind: str = "gauge") -> Metric:
    family = Metric(f"inference_{name.removesuffix('_total')}", description, kind)
    for labels, value in samples:
        family.add_sample(f"inference_{name}", labels, value)
    return family
