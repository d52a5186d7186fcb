"""The documents of a job, a bulk and a model in answers."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from django.conf import settings

from api.answers import huggingface
from inference.catalog.lookup import get_last_spec
from inference.catalog.parameters import ParameterSpec
from inference.catalog.specs import ModelSpec
from inference.errors import RETRYABLE_OUTCOMES
from inference.models import Bulk, Job, Status
from inference.status import queue_position, readiness, worker_catalogs, workers
from inference.submission import bulk as bulks
from inference.values.priority import Priority


def make_job_document(row: Job, *, with_output: bool = True, plain: bool = False) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": row.id,
        "model": row.model,
        "status": row.status,
        "priority": Priority(row.priority).name.lower(),
        "created_at": row.created_at,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
        "expires_at": row.expires_at,
        "batch_size": row.batch_size,
        "attempts": row.attempts,
        "request_id": row.request_id,
        "bulk": row.bulk_id,
        "bulk_index": row.bulk_index,
        "error": _make_error_document(row) if row.error_code else None,
    }
    if with_output:
        shown["output"] = make_output(row, plain=plain)
    return shown


def _make_error_document(row: Job) -> dict[str, Any]:
    retryable = row.error_code in RETRYABLE_OUTCOMES
    return {"code": row.error_code, "detail": row.public_detail, "retryable": retryable}


def make_document_with_position(row: Job) -> dict[str, Any]:
    """Return a job's document, with its position in the queue and its estimated wait while it is queued."""
    shown = make_job_document(row)
    if row.status == Status.QUEUED:
        place = queue_position.find_position(row)
        shown["position"] = place.position
        shown["estimated_wait_s"] = place.wait_s and round(place.wait_s, 1)
    return shown


def make_output(row: Job, user_agent: str = "", spec: ModelSpec | None = None, *, plain: bool = False) -> Any:
    """Return a job's output in the shape that Hugging Face's clients expect for the model's task.

    With `plain` it is in the model's own shape, in which an input has the same answer alone and in a list.
    """
    if plain or row.status != Status.SUCCEEDED or not (spec := spec or get_last_spec(row.model)):
        return row.output
    return huggingface.shape_output(spec.task, row.output, size=row.size, user_agent=user_agent)


def make_bulk_document(row: Bulk, progress: bulks.BulkProgress | None = None) -> dict[str, Any]:
    progress = progress or bulks.read_progress(row)
    return {
        "id": row.id,
        "model": row.model,
        "created_at": row.created_at,
        "finished": progress.is_finished,
        "total": row.total,
        "rejected": len(row.rejected),
        "counts": progress.counts,
        "errors": progress.errors,
        "request_id": row.request_id,
    }


def make_accepted_bulk_document(accepted: bulks.Accepted) -> dict[str, Any]:
    jobs = [{"index": index, "id": job_id} for index, job_id in accepted.jobs]
    return {**make_bulk_document(accepted.bulk, accepted.progress), "jobs": jobs, "refused": accepted.bulk.rejected}


def make_model_document(spec: ModelSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "task": spec.task,
        "model": spec.model,
        "revision": spec.revision or None,
        "default_for": spec.default_for,
        "limits": {
            "max_batch_size": spec.max_batch_size,
            "max_length": spec.max_length or None,
            "time_limit_s": spec.time_limit_s,
            "max_queued": spec.max_queued,
        },
        "parameters": {name: _make_parameter_document(parameter) for name, parameter in spec.parameters.items()},
        "served": {
            "workers": workers.count_serving_workers(spec.name),
            "memory_bytes": workers.find_memory_presence().get(spec.name, workers.MemoryPresence()).bytes,
            "queued": queue_position.count_queued_jobs(spec),
            "items_per_s": workers.measure_model_speeds().get(spec.name),
            "note": workers.read_model_notes().get(spec.name),
            "entries": [
                _make_entry_document(run, count)
                for run, count in sorted(worker_catalogs.count_living_entries().get(spec.name, {}).items())
            ],
        },
    }


def _make_entry_document(run: worker_catalogs.CatalogEntry, count: int) -> dict[str, Any]:
    why = run.why if settings.ENGINE_ERRORS == "full" or not run.why else readiness.Cause.FAILED.value
    return {
        "model": run.model, "revision": run.revision or None, "state": run.state, "why": why or None, "workers": count,
    }  # fmt: skip


def _make_parameter_document(parameter: ParameterSpec) -> dict[str, Any]:
    shown = {field.name: getattr(parameter, field.name) for field in fields(parameter)}
    return {name: value for name, value in shown.items() if value is not None}
