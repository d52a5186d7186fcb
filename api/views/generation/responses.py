"""Views of responses, which are chats that a client may leave and come back to."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from api import codec
from api.answers.completions.completion import generates_single_text
from api.answers.responses.events import BEGINNING, write_response_events
from api.answers.responses.response import PREFIX, make_response, read_messages
from api.auth import Principal, require_cancel_or_retry
from api.errors.problems import ApiError
from api.openapi import generation_operations as operations
from api.requests import bodies
from api.requests.dialects.generation import responses
from api.views import streaming
from api.views.base import ApiView, get_visible_job, read_json
from api.views.models import refuse_unused_parameter, run_in_dialect
from inference.catalog.lookup import get_spec
from inference.errors import InferenceError, JobNotFound, make_field_error
from inference.models import Job, Status
from inference.submission import jobs
from inference.values.uuid_parsing import parse_uuid


class ResponsesView(ApiView):
    query_parameters = {"POST": ("timeout", *streaming.QUERY)}

    @operations.create_response
    def post(self, request: HttpRequest, name: str = "") -> HttpResponseBase:
        document, spec = read_json(request), get_spec(name) if name else None
        dialect_request = responses.read_response_request(document, spec, before=self._read_previous_messages(document))
        refuse_unused_parameter(request, dialect_request.is_streamed)
        if dialect_request.is_background and "timeout" in request.GET:
            raise ApiError("timeout: not for a response in the background; leave it out.", field="timeout")
        if not dialect_request.is_streamed and not dialect_request.is_background:
            return run_in_dialect(self, request, dialect_request, write_response)
        with dialect_request.translate_errors():
            submission = self.add_request_terms(request, dialect_request.submission)
            if not dialect_request.is_streamed:
                return codec.make_json_response(make_response(jobs.submit(submission)))
            submit = partial(jobs.submit, submission, needs_worker=not dialect_request.is_background)
            write_events = partial(write_response_events, repeated=dialect_request.repeated)
            return streaming.answer_stream(self, request, submit, write_events)

    def _read_previous_messages(self, document: Any) -> list[dict[str, Any]] | None:
        if (previous := responses.read_previous_id(document)) is None:
            return None
        try:
            job = get_response_job(self.principal, previous)
        except InferenceError as error:
            raise make_field_error(responses.PREVIOUS, error.message) from None
        if job.status != Status.SUCCEEDED:
            raise make_field_error(responses.PREVIOUS, f"{previous} has no answer to follow; it is {job.status}.")
        return read_messages(job)


class ResponseView(ApiView):
    is_cancellable = True
    query_parameters = {"GET": ("stream", "starting_after", "include_obfuscation", *streaming.QUERY)}

    @operations.get_response
    def get(self, request: HttpRequest, response_id: str) -> HttpResponseBase:
        job = get_response_job(self.principal, response_id)
        bodies.read_query_flag(request.GET, "include_obfuscation")
        if not bodies.read_query_flag(request.GET, "stream"):
            if "starting_after" in request.GET:
                raise ApiError("starting_after: is for events; send stream=true with it.", field="starting_after")
            return codec.make_json_response(make_response(job))
        after = bodies.read_query_integer(request.GET, "starting_after", BEGINNING)
        repeated = responses.read_echoed_fields(job.inputs)
        write_events = partial(write_response_events, repeated=repeated, after=after)
        return streaming.answer_stream(self, request, lambda: job, write_events)

    @operations.delete_response
    def delete(self, request: HttpRequest, response_id: str) -> HttpResponse:
        job = get_changeable_response_job(self.principal, response_id)
        jobs.delete(job)
        return codec.make_json_response({"id": f"{PREFIX}{job.id.hex}", "object": "response", "deleted": True})


class CancelResponseView(ApiView):
    @operations.cancel_response
    def post(self, request: HttpRequest, response_id: str) -> HttpResponse:
        row = jobs.cancel(get_changeable_response_job(self.principal, response_id).id)
        return codec.make_json_response(make_response(row))


def get_response_job(principal: Principal, response_id: str) -> Job:
    """Return the job of a response. Raises the errors of `get_visible_job`."""
    if parse_uuid(key := response_id.removeprefix(PREFIX)) is None:
        raise JobNotFound(f"There is no response {response_id[:100]!r}.")
    job = get_visible_job(principal, key)
    if not generates_single_text(job) or not isinstance(job.inputs, list):
        raise JobNotFound(f"There is no response {response_id}.")
    return job


def get_changeable_response_job(principal: Principal, response_id: str) -> Job:
    """Return the job of a response that the principal may cancel and delete. Raises as `get_changeable_job` does."""
    job = get_response_job(principal, response_id)
    require_cancel_or_retry(principal, job)
    return job


def write_response(job: Job) -> bytes:
    return codec.write_json(make_response(job))
