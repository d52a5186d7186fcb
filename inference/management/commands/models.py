"""The command `manage.py models`, which lists the models and the workers that serve them now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django.core.management.base import BaseCommand

from inference.catalog import lookup
from inference.catalog.specs import ModelSpec
from inference.management.command_errors import show_errors_as_sentences
from inference.models import Worker
from inference.status import queue_position, readiness, workers
from inference.telemetry.plurals import format_count


class Command(BaseCommand):
    help = "List the models of MODELS_FILE: their weights, the workers that serve them, and the jobs that wait."
    requires_system_checks = ()  # the command itself reports what is wrong with the models file

    def handle(self, *args: Any, **options: Any) -> None:
        with show_errors_as_sentences():
            living = list(workers.select_living_workers())
            for spec in lookup.get_catalog().values():
                self.stdout.write(self.style.MIGRATE_HEADING(spec.name))
                for name, fact in list_entry_facts(spec, living):
                    self.stdout.write(f"  {name:<10} {fact}")


def list_entry_facts(spec: ModelSpec, living: Iterable[Worker]) -> Iterator[tuple[str, str]]:
    entry = {"task": spec.task, "engine": spec.engine, "weights": spec.model, "revision": spec.revision}
    yield from ((name, fact) for name, fact in entry.items() if fact)
    yield "served by", "; ".join(describe_model_workers(spec.name, living)) or "no living worker"
    yield "queue", f"{spec.queue}, {format_count(queue_position.count_queued_jobs(spec), 'job', ('waits', 'wait'))}"


def describe_model_workers(model: str, living: Iterable[Worker]) -> Iterator[str]:
    """Yield the workers that have the model, or why one of them does not serve it."""
    for worker in living:
        if why_not := readiness.find_worker_unready_reason(worker, model):
            yield f"not by {worker.name}: {why_not.text.rstrip('.')}"
        elif model in worker.model_names:
            ready = f"{worker.replicas_ready} of {worker.replicas_total} replicas"
            yield f"{worker.name}, {ready} on {', '.join(worker.devices)}"
