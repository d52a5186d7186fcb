from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseNotModified, UnreadablePostError
from django.http.response import HttpResponseBase
from rest_framework.views import APIView

from api import auth, codec, request_id
from api.auth import ANONYMOUS, Principal
from api.errors import problems
from api.errors.problems import ApiError
from api.requests import bodies
from api.server.middleware import format_route
from inference import process_resources
from inference.errors import JobNotFound, UnknownOwner
from inference.models import Job
from inference.store import connections
from inference.submission import jobs
from inference.submission.submissions import Terms
from inference.telemetry import logs
from inference.upkeep import retention
from inference.values.uuid_parsing import parse_uuid

T = TypeVar("T", bound=Terms)


class ApiView(APIView):
    """The base of the views: they answer with JSON only, so nothing is negotiated, and errors are problem documents."""

    http_method_names = ["get", "head", "post", "delete"]
    query_parameters: Mapping[str, tuple[str, ...]] = {}  # by method, GET's also for HEAD; others are refused by name
    elsewhere: Mapping[str, Mapping[str, str]] = {}  # by method: the advice in the refusal of some other parameters
    is_cancellable = False  # True if POST ADDRESS/cancel exists
    is_open = False  # True if the view answers without a key
    kept_waiting = True  # False if there was no room for this request to wait
    head: Callable[..., HttpResponseBase]  # the `get` of a view that has one

    def __init_subclass__(cls) -> None:
        """Answer HEAD as GET.

        Django would do so by an attribute of the view that refers to the view itself. Then a view would hold body and
        answer until garbage is collected.
        """
        if hasattr(cls, "get"):
            cls.head = cls.get

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Answer with Django's own request, which parses nothing by itself, and without DRF's renderers."""
        try:
            self.initial(request)
            name = (request.method or "").lower()
            if name not in self.http_method_names or not hasattr(self, name):
                return self.refuse_method(request)
            answer: HttpResponseBase = getattr(self, name)(request, *args, **kwargs)
            return answer
        except Exception as error:
            return self.handle_exception(error)

    def initial(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        self.principal: Principal = ANONYMOUS
        if not self.is_open:
            self.principal = auth.find_principal(request.META.get("HTTP_AUTHORIZATION", ""))
            connections.release_connection()  # next the broker counts the rate, and a slow client may send its body
            auth.count_against_rate_limit(self.principal)
        method = request.method or ""
        if method in self.allowed_methods:
            method = "GET" if method == "HEAD" else method
            bodies.refuse_unknown_query_parameters(
                request.GET, self.query_parameters.get(method, ()), self.elsewhere.get(method, {})
            )

    def refuse_method(self, request: HttpRequest) -> HttpResponse:
        allowed = ", ".join(self.allowed_methods)
        cancel = f" To cancel: POST {request.path[:200]}/cancel." if self.is_cancellable else ""
        return problems.make_problem("method_not_allowed", f"Use {allowed}.{cancel}", headers={"Allow": allowed})

    def handle_exception(self, exc: Exception) -> HttpResponse:  # type: ignore[override]  # DRF's answer is rendered later
        if isinstance(exc, UnknownOwner):  # another process deleted the user, and the key is still cached here
            auth.keyring.forget_key()
            exc = auth.make_invalid_key_error()
        response = problems.answer_exception(exc)
        exc.__traceback__ = None  # its frames may refer to the error, and would hold the body too
        return response

    def add_request_terms(self, request: HttpRequest, submission: T) -> T:
        """Return the submission with its owner and all else that the body does not hold. Raises `ApiError`."""
        auth.require_priority(self.principal, submission.priority)
        return dataclasses.replace(
            submission,
            owner=self.principal.user,
            max_owned=self.principal.find_max_waiting_jobs(submission.priority),
            key_start=self.principal.key_start,
            idempotency_key=bodies.read_idempotency_key(request.META.get("HTTP_IDEMPOTENCY_KEY")),
            request_id=request_id.get_request_id(),
            route=format_route(request.resolver_match.route) if request.resolver_match else None,
        )

    def wait_for_job(self, request: HttpRequest, job_id: str) -> Job:
        """Return the job. If it is not finished, wait for it for `?wait=N` seconds at most."""
        wait_s = bodies.read_seconds(request.GET, "wait") or 0.0
        job = get_visible_job(self.principal, job_id)
        if not wait_s or job.is_finished:
            return job
        with self.take_wait_slot(wait_s) as granted_s:
            return jobs.wait(job.id, timeout_s=granted_s)

    def wants_plain_outputs(self, request: HttpRequest) -> bool:
        """Return True if outputs are wanted as the model gave them."""
        return bodies.prefers_plain_outputs(request.META.get("HTTP_PREFER", ""))

    @contextlib.contextmanager
    def take_wait_slot(self, wait_s: float) -> Iterator[float]:
        """Yield the seconds that this request may wait: 0 if too many requests of its principal wait already."""
        with process_resources.current.wait_slots.limit_wait(self.principal.user_id, wait_s) as granted_s:
            self.kept_waiting = granted_s == wait_s
            yield granted_s


def get_visible_job(principal: Principal, job_id: str) -> Job:
    """Return the job with this id, if the principal may see it.

    Raises `JobNotFound`, the same for a job of another owner as for none, and `ApiError` for a job that was removed.
    """
    if (key := parse_uuid(job_id)) is None:
        raise JobNotFound(f"There is no job {job_id[:100]!r}: ids are UUIDs.")
    logs.bind_more_ids(job=key)
    with contextlib.suppress(JobNotFound):
        job = jobs.fetch(key)
        if principal.may_see(job):
            return job
    if retention.may_have_been_removed(key):
        kept = f"finished jobs are kept for {settings.JOB_RETENTION_DAYS:g} days"
        raise ApiError(f"The job {key} was removed: {kept}.", "job_gone")
    raise JobNotFound(f"There is no job {key}.")


def get_changeable_job(principal: Principal, job_id: str) -> Job:
    """Return the job with this id, if the principal may cancel it and run it again.

    Raises the errors of `get_visible_job`, and `ApiError` if the principal may only look at the job.
    """
    job = get_visible_job(principal, job_id)
    auth.require_cancel_or_retry(principal, job)
    return job


def read_body_bytes(request: HttpRequest) -> bytes:
    """Return the body of a request.

    Raises `ApiError` for a body that ended before its announced length: its end is missing.
    """
    try:
        body: bytes = request.body
    except UnreadablePostError as error:
        raise ApiError("The body could not be read to its end.") from error
    if len(body) < int(request.META.get("CONTENT_LENGTH") or 0):
        raise ApiError(f"The body ended after {len(body)} bytes, before its Content-Length.")
    return body


def read_media_type(request: HttpRequest) -> str:
    return str(request.META.get("CONTENT_TYPE", "")).partition(";")[0].strip().lower()


def add_etag(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """Return the answer with its ETag, or 304 if the client has this very answer already."""
    etag = f'"{hashlib.blake2b(response.content, digest_size=12).hexdigest()}"'
    if etag in request.META.get("HTTP_IF_NONE_MATCH", ""):
        response = HttpResponseNotModified()
    response.headers["ETag"] = etag
    response.headers["Cache-Control"] = "private, no-cache"
    return response


def read_json(request: HttpRequest) -> Any:
    """Return the JSON body, which is not validated."""
    bodies.require_json(read_media_type(request))
    return codec.parse_json(read_body_bytes(request))
