"""Views of chats and completions at /openai/v1 and /v1, and below /v1/models/NAME for Hugging Face's clients."""

from __future__ import annotations

from functools import partial

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema_view

from api import codec
from api.answers.completions import chunks
from api.answers.completions import completion as shapes
from api.answers.completions.completion import CHAT, MODEL_TEXT, TEXT, CompletionKind
from api.auth import require_cancel_or_retry
from api.openapi import generation_operations as operations
from api.requests import bodies
from api.requests.dialects.generation import completions
from api.requests.dialects.generation.completions import Completion
from api.views import streaming
from api.views.base import ApiView, get_visible_job, read_json
from api.views.models import answer_in_dialect, read_wait_limit_s, refuse_unused_parameter, run_in_dialect
from inference.catalog.lookup import get_spec
from inference.errors import JobNotFound
from inference.models import Job
from inference.streams.positions import BEGINNING
from inference.submission import jobs


class CompletionView(ApiView):
    query_parameters = {"POST": ("timeout", *streaming.QUERY)}

    def answer_request(self, request: HttpRequest, kind: CompletionKind, completion: Completion) -> HttpResponseBase:
        refuse_unused_parameter(request, completion.is_streamed)
        if not completion.is_streamed:
            write = partial(write_completion, kind, answers=completion.answers)
            return run_in_dialect(self, request, completion, write)
        with completion.translate_errors():
            submit = partial(jobs.submit, self.add_request_terms(request, completion.submission), needs_worker=True)
            write_chunks = partial(
                chunks.write_completion_chunks,
                kind=kind,
                include_usage=completion.include_usage,
                translate=completion.translate_field_names,
            )
            return streaming.answer_stream(self, request, submit, write_chunks)


class ChatView(CompletionView):
    @operations.complete_chat
    def post(self, request: HttpRequest, name: str = "") -> HttpResponseBase:
        document, spec = read_json(request), get_spec(name) if name else None
        return self.answer_request(request, CHAT, completions.read_chat(document, spec))


@extend_schema_view(post=operations.complete_chat_of_model)
class ModelChatView(ChatView):
    """The view below a model."""


class TextCompletionView(CompletionView):
    @operations.complete_text
    def post(self, request: HttpRequest, name: str = "") -> HttpResponseBase:
        document, spec = read_json(request), get_spec(name) if name else None
        kind = MODEL_TEXT if spec else TEXT
        return self.answer_request(request, kind, completions.read_text_completion(document, spec))


@extend_schema_view(post=operations.complete_text_of_model)
class ModelTextCompletionView(TextCompletionView):
    """The view below a model."""


class StoredCompletionView(ApiView):
    """The completion of a job that was submitted before, whose client lost the answer or did not wait for it."""

    kind: CompletionKind
    query_parameters = {"GET": ("timeout", "stream", "last_event_id", *streaming.QUERY)}

    def get(self, request: HttpRequest, completion_id: str) -> HttpResponseBase:
        job = self.get_visible_completion_job(completion_id)
        is_streamed = bodies.read_query_flag(request.GET, "stream")
        refuse_unused_parameter(request, is_streamed)
        if is_streamed:
            streaming.require_streamable_job(job)
            completions.refuse_streamed_echo(job.parameters)
            after = streaming.read_position(request, job)
            begin = BEGINNING if shapes.may_call_tools(self.kind, job) else after
            write_chunks = partial(chunks.write_completion_chunks, kind=self.kind, after=after)
            return streaming.answer_stream(self, request, lambda: job, write_chunks, after=begin)
        with self.take_wait_slot(read_wait_limit_s(request, bodies.MAX_WAIT_S)) as granted_s:
            row = jobs.wait(job.id, timeout_s=granted_s)
        return answer_in_dialect(self, request, row, self.write_stored_completion)

    def get_visible_completion_job(self, completion_id: str) -> Job:
        job = get_visible_job(self.principal, completion_id.removeprefix(self.kind.prefix))
        if not shapes.generates_texts(job):
            raise JobNotFound(f"There is no completion {job.id}.")
        return job

    def write_stored_completion(self, job: Job) -> bytes:
        return write_completion(self.kind, job, answers=shapes.count_answers(job))


@extend_schema_view(get=operations.get_chat)
class StoredChatView(StoredCompletionView):
    kind = CHAT

    @operations.delete_chat
    def delete(self, request: HttpRequest, completion_id: str) -> HttpResponse:
        job = self.get_visible_completion_job(completion_id)
        require_cancel_or_retry(self.principal, job)
        jobs.delete(job)
        shown = {"id": f"{self.kind.prefix}{job.id}", "object": "chat.completion.deleted", "deleted": True}
        return codec.make_json_response(shown)


@extend_schema_view(get=operations.get_text)
class StoredTextView(StoredCompletionView):
    kind = TEXT


def write_completion(kind: CompletionKind, job: Job, *, answers: int = 1) -> bytes:
    return codec.write_json(shapes.make_completion(kind, job, answers))


class OpenAIModelsView(ApiView):
    @operations.list_models
    def get(self, request: HttpRequest) -> HttpResponse:
        return codec.make_json_response(shapes.list_models())


class OpenAIModelView(ApiView):
    @operations.get_model
    def get(self, request: HttpRequest, name: str) -> HttpResponse:
        return codec.make_json_response(shapes.get_openai_model_document(name))
