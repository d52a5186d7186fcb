"""The views of /v1/models: the models that are served, and the blocking call of a model."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from api import codec
from api.answers import events, resources, wav_files
from api.answers.completions import tgi_events
from api.answers.completions.completion import list_models, make_openai_model
from api.answers.embeddings import write_similarities
from api.errors.problems import ApiError
from api.openapi import operations
from api.requests import bodies
from api.requests.dialects import huggingface
from api.requests.dialects.base import DialectRequest
from api.requests.dialects.huggingface import ModelRequest
from api.requests.dialects.tei import make_similarity_request
from api.views import streaming
from api.views.base import ApiView, read_body_bytes, read_media_type
from api.views.jobs import answer_output, make_job_address
from inference.catalog.lookup import get_catalog, get_spec
from inference.catalog.parameters import is_of_type
from inference.catalog.specs import ModelSpec
from inference.models import Job, Status
from inference.streams.events import Event
from inference.submission import jobs
from inference.submission.submissions import Submission

PIECE = 1 << 20  # bytes of an answer that are sent at once


class ModelsView(ApiView):
    @operations.list_models
    def get(self, request: HttpRequest) -> HttpResponse:
        items = [resources.make_model_document(spec) for spec in get_catalog().values()]
        return codec.make_json_response({"items": items, **list_models()})


class InfinityModelsView(ApiView):
    """The list at /models, which infinity's client reads by its own names only."""

    @operations.not_described
    def get(self, request: HttpRequest) -> HttpResponse:
        found = [spec.name for spec in get_catalog().values() if spec.request_kinds]
        shown = [{"id": name, "object": "model", "created": 0, "stats": {}} for name in found]
        return codec.make_json_response({"object": "list", "data": shown})


class ModelView(ApiView):
    query_parameters = {"POST": ("timeout", *streaming.QUERY)}

    @operations.get_model
    def get(self, request: HttpRequest, name: str) -> HttpResponse:
        spec = get_spec(name)
        return codec.make_json_response({**make_openai_model(spec), **resources.make_model_document(spec)})

    @operations.run_model
    def post(self, request: HttpRequest, name: str) -> HttpResponseBase:
        model_request = huggingface.read_request(get_spec(name), read_body_bytes(request), read_media_type(request))
        with model_request.translate_errors():
            return self.answer_request(request, model_request)

    def answer_request(self, request: HttpRequest, model_request: ModelRequest) -> HttpResponseBase:
        submission = model_request.submission
        refuse_unused_parameter(request, model_request.is_streamed)
        if model_request.is_streamed:
            submit = partial(jobs.submit, self.add_request_terms(request, submission), needs_worker=True)
            has_tokens = submission.spec.is_built_in and is_of_type(submission.parameters.get("logprobs"), "integer")
            write = tgi_events.write_token_events if has_tokens else events.write_events_with_address
            # Not the request as a whole, as the inputs are not to be kept meanwhile.
            plain, words = self.wants_plain_outputs(request), model_request.words

            def write_translated(job: Job, found: Iterator[Event]) -> Generator[bytes, None, None]:
                return write(job, huggingface.translate_stream_errors(found, words), plain=plain)

            return streaming.answer_stream(self, request, submit, write_translated)
        if submission.spec.embeds and isinstance(submission.inputs, dict) and "source_sentence" in submission.inputs:
            compared = make_similarity_request(submission.spec, submission.inputs, submission.parameters)
            return run_in_dialect(self, request, compared, write_similarities, default_s=bodies.DEFAULT_TIMEOUT_S)
        job = run_job_within_timeout(self, request, submission)
        job.error_detail = model_request.translate_field_names(job.error_detail)
        if not self.wants_plain_outputs(request) and wav_files.is_sound_wanted(
            submission.spec, request.META.get("HTTP_ACCEPT", "")
        ):
            return answer_sound(self, request, job, submission.spec)
        return answer_output(self, request, job, submission.spec)


def answer_sound(view: ApiView, request: HttpRequest, job: Job, spec: ModelSpec) -> HttpResponse:
    """Return the sound of a job as a file. An output that is not one sound, as of several texts, is JSON."""
    file = wav_files.encode_wav(job.output) if job.status == Status.SUCCEEDED else None
    if file is None:
        return answer_output(view, request, job, spec)
    headers = {"Content-Location": f"{make_job_address(job)}/output"}
    return HttpResponse(file, content_type=wav_files.CONTENT_TYPE, headers=headers)


def run_job_within_timeout(
    view: ApiView, request: HttpRequest, submission: Submission, *, default_s: float = bodies.DEFAULT_TIMEOUT_S
) -> Job:
    """Submit a job, and return it, finished or not, after ?timeout= seconds at most."""
    with view.take_wait_slot(read_wait_limit_s(request, default_s)) as granted_s:
        return jobs.run(view.add_request_terms(request, submission), timeout_s=granted_s)


class DialectView(ApiView):
    """A view for the clients of another server, which wait for their job."""

    query_parameters = {"POST": ("timeout",)}


def run_in_dialect(
    view: ApiView,
    request: HttpRequest,
    dialect_request: DialectRequest,
    write: Callable[[Job], bytes],
    *,
    default_s: float = bodies.MAX_WAIT_S,
) -> HttpResponseBase:
    """Run a job that was asked for in a dialect. All errors use the client's words, also those of the job.

    `write` writes the answer of a job that has succeeded, as JSON. `default_s` is the wait if the client names none.
    """
    with dialect_request.translate_errors():
        job = run_job_within_timeout(view, request, dialect_request.submission, default_s=default_s)
    if job.status != Status.SUCCEEDED:
        job.error_detail = dialect_request.translate_field_names(job.error_detail)
    return answer_in_dialect(view, request, job, write)


def answer_in_dialect(view: ApiView, request: HttpRequest, job: Job, write: Callable[[Job], bytes]) -> HttpResponseBase:
    """Return what `write` makes of a job that has succeeded, or why a job has no output.

    A large answer is sent in pieces, as the web server copies what it is given.
    """
    if job.status != Status.SUCCEEDED:
        return answer_output(view, request, job)
    content = write(job)
    headers = {"Content-Location": f"{make_job_address(job)}/output", "Content-Length": str(len(content))}
    if len(content) <= PIECE:
        return HttpResponse(content, headers=headers, content_type=codec.CONTENT_TYPE)
    pieces = (content[start : start + PIECE] for start in range(0, len(content), PIECE))
    return StreamingHttpResponse(pieces, headers=headers, content_type=codec.CONTENT_TYPE)


def refuse_unused_parameter(request: HttpRequest, is_streamed: bool) -> None:
    """Raise `ApiError` for `timeout` if the answer is streamed, and for `on_disconnect` if it is not."""
    other = "timeout" if is_streamed else "on_disconnect"
    if other in request.GET:
        raise ApiError(
            f"{other}: {'not ' if is_streamed else ''}for an answer that is streamed; leave it out.", field=other
        )


def read_wait_limit_s(request: HttpRequest, default_s: float) -> float:
    timeout_s = bodies.read_seconds(request.GET, "timeout")
    return default_s if timeout_s is None else timeout_s
