"""The spans of jobs that have ended and of their batches.

They are made as outcomes are recorded, with the times of the rows. They contain nothing of an input.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any
from uuid import UUID

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, StatusCode

from inference import clock
from inference.catalog import lookup, tasks
from inference.models import Job, Status
from inference.telemetry import tracing

logger = logging.getLogger(__name__)


def try_to_record(make: Callable[..., None], *of: Any) -> None:
    """Call `make` with `of` after a commit, and log what it raises: no record fails because of its spans."""
    try:
        make(*of)
    except Exception:
        logger.exception("no span of what was recorded")


def make_batch_spans(batch: UUID, outcomes: Sequence[Any], batch_size: int) -> None:
    """Make the spans of a batch's jobs, or of the jobs that leave an open batch now, and of the batch.

    The batch has a trace of its own, with a link to the span of each job.
    """
    common = {
        **_describe_model(outcomes[0].model),
        "inference.batch.id": str(batch),
        "inference.batch.size": batch_size,
    }
    end_ns = _to_ns(clock.get_database_time())
    spans = [
        _start_job_span(
            {**common, **_describe_usage(each.output)},
            each.whole or each.job_id,
            each.traceparent,
            each.created_at,
            each.started_at,
            each.status,
            each.error_code,
            end_ns,
        )
        for each in outcomes
    ]
    if links := [Link(span.get_span_context()) for span in spans if span.is_recording()]:
        began_ns = min((_to_ns(each.started_at) for each in outcomes if each.started_at), default=end_ns)
        name = f"batch {outcomes[0].model}"
        batch_span = tracing.get_tracer().start_span(
            name, Context(), attributes=common, links=links, start_time=began_ns
        )
        batch_span.end(end_ns)
    for span in spans:
        span.end(end_ns)


def make_spans_without_batch(ids: Iterable[UUID], status: Status, code: str) -> None:
    """Make the spans of jobs that ended otherwise than by a batch.

    The span of a list in parts is the one that the spans of its parts are within.
    """
    columns = "model", "pk", "traceparent", "created_at", "started_at", "parts"
    end_ns = _to_ns(clock.get_database_time())
    held = Job.objects.filter(pk__in=list(ids), whole=None).values_list(*columns)
    for model, job, traceparent, created_at, started_at, parts in held:
        with tracing.set_whole_span_id(job) if parts else nullcontext():
            _start_job_span(_describe_model(model), job, traceparent, created_at, started_at, status, code, end_ns).end(
                end_ns
            )


def _start_job_span(
    attributes: dict[str, Any],
    job: UUID,
    traceparent: str | None,
    created_at: datetime,
    started_at: datetime | None,
    status: str,
    code: str,
    end_ns: int,
) -> Span:
    """Start the span of a job at the time of its submission; the caller ends it."""
    own: dict[str, Any] = {"inference.job.id": str(job), "inference.job.status": str(status)}
    if started_at:
        began_ns = _to_ns(started_at)
        own["inference.job.queue_s"] = max(0, began_ns - _to_ns(created_at)) / 1e9
        own["inference.job.run_s"] = max(0, end_ns - began_ns) / 1e9
    name = f"{attributes['gen_ai.operation.name']} {attributes['gen_ai.request.model']}"
    span = tracing.get_tracer().start_span(
        name, tracing.parse_context(traceparent), attributes={**attributes, **own}, start_time=_to_ns(created_at)
    )
    if code:
        span.set_attribute("error.type", code)
        span.set_status(StatusCode.ERROR)
    return span


def _describe_model(model: str) -> dict[str, Any]:
    spec = lookup.get_catalog_or_empty().get(model)
    task = spec.task if spec else ""
    operation = (
        "text_completion" if tasks.find_task(task).generates else "embeddings" if task in tasks.EMBEDDINGS else task
    )
    return {
        "gen_ai.operation.name": operation or "inference", "gen_ai.provider.name": "inference",
        "gen_ai.request.model": model,
    }  # fmt: skip


def _describe_usage(output: object) -> dict[str, int]:
    match output:
        case [{"details": {"prompt_tokens": int(prompt), "generated_tokens": int(generated)}}]:
            return {"gen_ai.usage.input_tokens": prompt, "gen_ai.usage.output_tokens": generated}
    return {}


def _to_ns(moment: datetime) -> int:
    return int(moment.timestamp() * 1e9)
