"""The views of /v1/models: the models that are served, and the blocking call of a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from api import codec
from api.answers import events, huggingface, resources, sounds
from api.answers.completions import all_models, openai_model
from api.answers.embeddings import similarities
from api.errors.problems import ApiError
from api.openapi import operations
from api.requests import bodies
from api.requests.dialects.base import DialectRequest
from api.requests.dialects.tei import similarity_of
from api.views import streaming
from api.views.base import ApiView, body_of, media_type
from api.views.jobs import location, output
from inference.catalog.lookup import models, spec_of
from inference.catalog.specs import ModelSpec
from inference.models import Job, Status
from inference.submission import jobs
from inference.submission.submissions import Submission


class ModelsView(ApiView):
    @operations.list_models
    def get(self, request: HttpRequest) -> HttpResponse:
        items = [resources.model(spec) for spec in models().values()]
        return codec.answer({"items": items, **all_models()})


class ModelView(ApiView):
    query_parameters = {"POST": ("timeout", *streaming.QUERY)}

    @operations.get_model
    def get(self, request: HttpRequest, name: str) -> HttpResponse:
        spec = spec_of(name)
        return codec.answer({**openai_model(spec), **resources.model(spec)})

    @operations.run_model
    def post(self, request: HttpRequest, name: str) -> HttpResponseBase:
        submission, is_streamed = huggingface.read(spec_of(name), body_of(request), media_type(request))
        refuse_other_wait(request, is_streamed)
        if is_streamed:
            submit = partial(jobs.submit, self.attributed(request, submission), needs_worker=True)
            return streaming.answer(self, request, submit, partial(events.named, plain=self.is_plain(request)))
        if submission.spec.embeds and isinstance(submission.inputs, dict) and "source_sentence" in submission.inputs:
            compared = similarity_of(submission.spec, submission.inputs, submission.parameters)
            return run_in_words(self, request, compared, similarities, default_s=bodies.DEFAULT_TIMEOUT_S)
        job = run(self, request, submission)
        if not self.is_plain(request) and sounds.is_wanted(submission.spec, request.META.get("HTTP_ACCEPT", "")):
            return answer_sound(self, request, job, submission.spec)
        return output(self, request, job, submission.spec)


def answer_sound(view: ApiView, request: HttpRequest, job: Job, spec: ModelSpec) -> HttpResponse:
    """Return the sound of a job as a file. An output that is not one sound, as of several texts, is JSON."""
    file = sounds.wav(job.output) if job.status == Status.SUCCEEDED else None
    if file is None:
        return output(view, request, job, spec)
    headers = {"Content-Location": f"{location(job)}/output"}
    return HttpResponse(file, content_type=sounds.CONTENT_TYPE, headers=headers)


def run(
    view: ApiView, request: HttpRequest, submission: Submission, *, default_s: float = bodies.DEFAULT_TIMEOUT_S
) -> Job:
    """Submit a job, and return it, finished or not, after ?timeout= seconds at most."""
    with view.slot(waited_s(request, default_s)) as granted_s:
        return jobs.run(view.attributed(request, submission), timeout_s=granted_s)


class DialectView(ApiView):
    """A view for the clients of another server, which wait for their job."""

    query_parameters = {"POST": ("timeout",)}


def run_in_words(
    view: ApiView,
    request: HttpRequest,
    dialect_request: DialectRequest,
    write: Callable[[Job], bytes],
    *,
    default_s: float = bodies.MAX_WAIT_S,
) -> HttpResponse:
    """Run a job that was asked for in a dialect. All errors use the client's words, also those of the job.

    `write` writes the answer of a job that has succeeded, as JSON. `default_s` is the wait if the client names none.
    """
    with dialect_request.in_its_words():
        job = run(view, request, dialect_request.submission, default_s=default_s)
    if job.status != Status.SUCCEEDED:
        job.error_detail = dialect_request.in_words(job.error_detail)
        return output(view, request, job)
    headers = {"Content-Location": f"{location(job)}/output"}
    return HttpResponse(write(job), headers=headers, content_type=codec.CONTENT_TYPE)


def refuse_other_wait(request: HttpRequest, is_streamed: bool) -> None:
    """Raise `ApiError` for `timeout` if the answer is streamed, and for `on_disconnect` if it is not."""
    other = "timeout" if is_streamed else "on_disconnect"
    if other in request.GET:
        raise ApiError(f"{other}: {'not ' if is_streamed else ''}for an answer that is streamed; leave it out.")


def waited_s(request: HttpRequest, default_s: float) -> float:
    timeout_s = bodies.seconds(request.GET, "timeout")
    return default_s if timeout_s is None else timeout_s
