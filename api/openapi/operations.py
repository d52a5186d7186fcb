"""All operations, as the OpenAPI document describes them. The views have these as decorators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema

from api import codec
from api.errors.problems import OUTCOMES
from api.openapi import answer_shapes
from api.openapi.operation_decorator import describe_operation
from api.requests import bodies, job_pages
from inference.catalog.specs import NAME
from inference.models import Status

REFUSED = ("invalid_input", "context_length_exceeded")
WITH_BODY = ("invalid_json", "body_too_large", "unsupported_media_type", *REFUSED)
ADMISSION = (
    "unknown_model", "idempotency_mismatch", "too_many_queued", "queue_full", "overloaded", "models_file_refused",
)  # fmt: skip
SUBMITTING = (*WITH_BODY, *ADMISSION)
FAILED_JOB = (*OUTCOMES, "not_finished")
JOB = ("job_not_found", "job_gone")

IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "pattern": f"^{bodies.KEY.pattern}$"},
    OpenApiParameter.HEADER,
    description="The same key and body is the same job, however often.",
)
PREFER = OpenApiParameter(
    "Prefer",
    str,
    OpenApiParameter.HEADER,
    description="`wait=N`: answer with the finished job if that is within N s. `outputs=plain`: as the model gave it.",
)
PLAIN = OpenApiParameter(
    "Prefer",
    str,
    OpenApiParameter.HEADER,
    description="`outputs=plain`: as the model gave them, not as Hugging Face's clients expect them.",
)
NONE_MATCH = OpenApiParameter(
    "If-None-Match", str, OpenApiParameter.HEADER, description="The ETag of an answer: 304 while nothing has changed."
)
LAST_EVENT_ID = OpenApiParameter(
    "Last-Event-ID", str, OpenApiParameter.HEADER, description="The id of the last event that arrived: go on after it."
)
UNCHANGED = OpenApiResponse(description="")


def make_wait_parameter(name: str, default: float, what: str) -> OpenApiParameter:
    schema = {"type": "number", "minimum": 0, "maximum": bodies.MAX_WAIT_S, "default": default}
    return OpenApiParameter(name, schema, OpenApiParameter.QUERY, description=f"Seconds to wait for {what}.")


def make_request_example(name: str, body: Mapping[str, Any]) -> OpenApiExample:
    return OpenApiExample(name, body, request_only=True)


def make_query_parameter(name: str, schema: Mapping[str, Any], description: str) -> OpenApiParameter:
    return OpenApiParameter(name, dict(schema), OpenApiParameter.QUERY, description=description)


ON_DISCONNECT = make_query_parameter(
    "on_disconnect", {"type": "string", "enum": ["cancel"]}, "Of a stream: the job is cancelled when its client goes."
)
_UUID = {"type": "string", "format": "uuid"}
_TIME = {"type": "string", "format": "date-time"}
_EXPIRES_IN = dict(zip(("type", "minimum", "maximum"), ("number", *bodies.EXPIRES_IN_S), strict=True))
_JOB_ID = OpenApiParameter("job_id", _UUID, OpenApiParameter.PATH)
_BULK_ID = OpenApiParameter("bulk_id", _UUID, OpenApiParameter.PATH)
_STEERED = ("body_too_large", "forbidden")  # without a body

not_described = extend_schema(exclude=True)
submit_job = describe_operation(
    "jobs_submit",
    "Submit a job",
    request=bodies.JobBody,
    answers={202: answer_shapes.JobShown, 200: answer_shapes.JobShown},
    problems=(*SUBMITTING, "forbidden"),
    parameters=[IDEMPOTENCY_KEY, PREFER],
    examples=[make_request_example("A text", {"model": "embeddings", "inputs": "some text", "priority": "low"})],
    headers={"Location": [202], "Retry-After": [202, 429, 503], "Preference-Applied": [200, 202]},
)
list_jobs = describe_operation(
    "jobs_list",
    "Jobs, the newest first, in pages",
    answers={200: answer_shapes.JobPageShown},
    parameters=[
        make_query_parameter(
            "limit", {"type": "integer", "minimum": 1, "maximum": job_pages.LONGEST_PAGE}, "Jobs of a page."
        ),
        make_query_parameter(
            "outputs", {"type": "integer", "enum": [0, 1]}, "1: with outputs, of which a page has 4 MB at most."
        ),
        make_query_parameter("cursor", _UUID, "The `next` of a page holds it."),
        make_query_parameter("model", {"type": "string", "pattern": f"^{NAME.pattern}$"}, "Only of this model."),
        make_query_parameter("status", {"type": "string", "enum": Status.values}, "Only with this status."),
        make_query_parameter("bulk", _UUID, "Only of this bulk."),
        make_query_parameter("created_after", _TIME, "Only those made then or later."),
        make_query_parameter("created_before", _TIME, "Only those made before."),
        PLAIN,
    ],
)
get_job = describe_operation(
    "jobs_get",
    "Look at a job, or wait for it",
    answers={200: answer_shapes.JobShown, 304: UNCHANGED},
    problems=JOB,
    parameters=[_JOB_ID, make_wait_parameter("wait", 0, "the job to be finished"), PLAIN, NONE_MATCH],
    headers={"ETag": [200, 304], "Retry-After": [200, 429, 503]},
)
get_output = describe_operation(
    "jobs_output",
    "The output alone",
    answers={200: answer_shapes.ANY},
    problems=(*JOB, *FAILED_JOB),
    parameters=[_JOB_ID, make_wait_parameter("wait", 0, "the job to be finished"), PLAIN],
    headers={"Location": [504], "Retry-After": [429, 503, 504]},
)
wait_for_jobs = describe_operation(
    "jobs_wait",
    "Wait for any of many jobs, and fetch those that are finished",
    request=bodies.WaitBody,
    answers={200: answer_shapes.FinishedShown},
    problems=WITH_BODY,
    parameters=[make_wait_parameter("wait", 0, "one of them to be finished"), PLAIN],
    headers={"Retry-After": [200, 429, 503]},
)
stream_job = describe_operation(
    "jobs_stream",
    "The text of a job as it is generated, as server-sent events",
    answers={(200, "text/event-stream"): answer_shapes.ANY},
    problems=(*JOB, "overloaded", "forbidden"),
    parameters=[
        _JOB_ID,
        LAST_EVENT_ID,
        make_query_parameter("last_event_id", {"type": "string"}, "The same."),
        ON_DISCONNECT,
        PLAIN,
    ],
    headers={"Retry-After": [429, 503]},
)
cancel_job = describe_operation(
    "jobs_cancel",
    "Cancel a job; a finished one stays as it is",
    answers={200: answer_shapes.JobShown},
    problems=(*JOB, *_STEERED),
    parameters=[_JOB_ID, PLAIN],
)
delete_job = describe_operation(
    "jobs_delete",
    "Delete a finished job with its inputs and its output",
    answers={200: answer_shapes.DeletedShown},
    problems=(*JOB, "job_in_use", "forbidden"),
    parameters=[_JOB_ID],
)
retry_job = describe_operation(
    "jobs_retry",
    "Run a job again, as a new job with the same inputs, parameters and priority",
    answers={202: answer_shapes.JobShown},
    problems=(*JOB, *_STEERED, *ADMISSION, *REFUSED),
    parameters=[_JOB_ID, IDEMPOTENCY_KEY],
    headers={"Location": [202], "Retry-After": [202, 429, 503]},
)
submit_bulk = describe_operation(
    "bulk_submit",
    "Submit many jobs",
    request={"application/json": bodies.BulkBody, "application/x-ndjson": bodies.LineBody},
    answers={202: answer_shapes.AcceptedBulkShown},
    problems=(*SUBMITTING, "forbidden"),
    parameters=[
        IDEMPOTENCY_KEY,
        make_query_parameter("model", {"type": "string"}, "With JSON lines: the model."),
        make_query_parameter(
            "priority", {"type": "string", "enum": list(bodies.PRIORITIES)}, "With JSON lines: the priority."
        ),
        make_query_parameter("expires_in", _EXPIRES_IN, "With JSON lines: seconds; jobs not started by then expire."),
    ],
    headers={"Location": [202], "Retry-After": [202, 429, 503]},
)
get_bulk = describe_operation(
    "bulk_get",
    "Progress of a bulk",
    answers={200: answer_shapes.BulkShown, 304: UNCHANGED},
    problems=["bulk_not_found"],
    parameters=[_BULK_ID, make_wait_parameter("wait", 0, "its jobs to be finished"), NONE_MATCH],
    headers={"ETag": [200, 304], "Retry-After": [200]},
)
cancel_bulk = describe_operation(
    "bulk_cancel",
    "Cancel the jobs of a bulk that are not finished",
    answers={200: answer_shapes.BulkShown},
    problems=("bulk_not_found", *_STEERED),
    parameters=[_BULK_ID],
)
list_models = describe_operation("models_list", "What is served", answers={200: answer_shapes.ModelsShown})
get_model = describe_operation(
    "models_get",
    "One model: its task, limits and parameters",
    answers={200: answer_shapes.OneModelShown},
    problems=["unknown_model"],
)
run_model = describe_operation(
    "models_run",
    "Run a model and wait for its answer",
    request={"application/json": bodies.RunBody, "application/octet-stream": OpenApiTypes.BINARY},
    answers={
        (200, codec.CONTENT_TYPE): answer_shapes.ANY,
        (200, "text/event-stream"): answer_shapes.ANY,
        (200, "audio/wav"): OpenApiTypes.BINARY,
    },
    problems=(*SUBMITTING, *FAILED_JOB, "no_worker"),
    parameters=[
        make_wait_parameter("timeout", bodies.DEFAULT_TIMEOUT_S, "the answer, where it is not streamed"),
        IDEMPOTENCY_KEY,
        PLAIN,
        ON_DISCONNECT,
    ],
    examples=[OpenApiExample("A text", {"inputs": "some text"}, request_only=True, media_type=codec.CONTENT_TYPE)],
    headers={"Location": [504], "Retry-After": [429, 503, 504]},
)
waiting: dict[str, Any] = {  # of clients who wait for a job, and know nothing of jobs
    "problems": (*SUBMITTING, *FAILED_JOB, "no_worker"),
    "headers": {"Content-Location": [200], "Location": [504], "Retry-After": [429, 503, 504]},
}
about_problem = describe_operation(
    "about_problem",
    "What a problem's code means",
    answers={200: answer_shapes.ProblemTypeShown},
    problems=["not_found"],
    open_to_all=True,
)
get_metrics = describe_operation(
    "about_metrics",
    "Figures for Prometheus; with the key of a staff user",
    answers={(200, "text/plain"): str},
    problems=["forbidden"],
)
is_alive = describe_operation(
    "about_alive", "Whether the web process lives", answers={200: answer_shapes.AliveShown}, open_to_all=True
)
is_ready = describe_operation(
    "about_ready",
    "Whether database and broker answer and every model is served",
    answers={200: answer_shapes.ReadyShown, (503, codec.CONTENT_TYPE): answer_shapes.ReadyShown},
    open_to_all=True,
)
