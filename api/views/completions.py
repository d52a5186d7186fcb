"""Views of chats and completions at /openai/v1 and /v1, and below /v1/models/NAME for Hugging Face's clients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from api import codec
from api.answers import completion_chunks
from api.answers import completions as shapes
from api.answers.completions import CHAT, MODEL_TEXT, TEXT, CompletionKind
from api.openapi import operations
from api.requests import bodies
from api.requests.dialects import completions
from api.requests.dialects.completions import Completion
from api.views import streaming
from api.views.base import ApiView, body_of, media_type, visible_job
from api.views.jobs import location, output
from api.views.models import refuse_other_wait, run, waited_s
from inference.catalog.lookup import spec_of
from inference.errors import JobNotFound
from inference.models import Job, Status
from inference.streams.positions import BEGINNING, Position
from inference.submission import jobs


class CompletionView(ApiView):
    query_parameters = {"POST": ("timeout", *streaming.QUERY)}

    def complete(self, request: HttpRequest, kind: CompletionKind, completion: Completion) -> HttpResponseBase:
        refuse_other_wait(request, completion.is_streamed)
        with completion.in_its_words():
            if completion.is_streamed:
                submit = partial(jobs.submit, self.attributed(request, completion.submission), needs_worker=True)
                return streamed(self, request, kind, submit, include_usage=completion.include_usage)
            job = run(self, request, completion.submission, default_s=bodies.MAX_WAIT_S)
        return completed(self, request, kind, job)


class ChatView(CompletionView):
    @operations.not_described
    def post(self, request: HttpRequest) -> HttpResponseBase:
        return self.complete(request, CHAT, completions.chat(json_of(request)))


class TextView(CompletionView):
    @operations.not_described
    def post(self, request: HttpRequest) -> HttpResponseBase:
        return self.complete(request, TEXT, completions.text(json_of(request)))


class ModelChatView(CompletionView):
    @operations.complete_chat
    def post(self, request: HttpRequest, name: str) -> HttpResponseBase:
        return self.complete(request, CHAT, completions.chat(json_of(request), spec_of(name)))


class ModelTextView(CompletionView):
    @operations.complete_text
    def post(self, request: HttpRequest, name: str) -> HttpResponseBase:
        return self.complete(request, MODEL_TEXT, completions.text(json_of(request), spec_of(name)))


class OldCompletionView(ApiView):
    """The completion of a job that was submitted before, whose client lost the answer or did not wait for it."""

    kind: CompletionKind
    query_parameters = {"GET": ("timeout", "stream", "last_event_id", *streaming.QUERY)}

    @operations.not_described
    def get(self, request: HttpRequest, completion_id: str) -> HttpResponseBase:
        job = visible_job(self.principal, completion_id.removeprefix(self.kind.prefix))
        if not shapes.is_one(job):
            raise JobNotFound(f"There is no completion {job.id}.")
        is_streamed = bodies.flag(request.GET, "stream")
        refuse_other_wait(request, is_streamed)
        if is_streamed:
            return streamed(self, request, self.kind, lambda: job, after=streaming.place(request, job))
        with self.slot(waited_s(request, bodies.MAX_WAIT_S)) as granted_s:
            return completed(self, request, self.kind, jobs.wait(job.id, timeout_s=granted_s))


class OldChatView(OldCompletionView):
    kind = CHAT


class OldTextView(OldCompletionView):
    kind = TEXT


def completed(view: ApiView, request: HttpRequest, kind: CompletionKind, job: Job) -> HttpResponse:
    if job.status != Status.SUCCEEDED:
        return output(view, request, job)
    return codec.answer(shapes.completion(kind, job), headers={"Content-Location": f"{location(job)}/output"})


def streamed(
    view: ApiView,
    request: HttpRequest,
    kind: CompletionKind,
    job: Callable[[], Job],
    *,
    after: Position = BEGINNING,
    include_usage: bool = False,
) -> HttpResponseBase:
    written = partial(completion_chunks.written, kind=kind, after=after, include_usage=include_usage)
    return streaming.answer(view, request, job, written, after=after)


class OpenAIModelsView(ApiView):
    @operations.not_described
    def get(self, request: HttpRequest) -> HttpResponse:
        return codec.answer(shapes.all_models())


class OpenAIModelView(ApiView):
    @operations.not_described
    def get(self, request: HttpRequest, name: str) -> HttpResponse:
        return codec.answer(shapes.model(name))


def json_of(request: HttpRequest) -> Any:
    bodies.json_only(media_type(request))
    return codec.loads(body_of(request))
