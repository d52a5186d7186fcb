"""The views of /v1/jobs: submit, look, wait, cancel, run again, list."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from api import codec
from api.answers import events, resources
from api.auth import Principal
from api.errors import problems
from api.openapi import operations
from api.requests import bodies, job_pages
from api.views import streaming
from api.views.base import ApiView, add_etag, get_changeable_job, get_visible_job, read_json
from inference.catalog.specs import ModelSpec
from inference.models import Job, Status
from inference.status import readiness
from inference.store import jobs_with_outputs
from inference.submission import admission, jobs
from inference.upkeep import retention

JOB_BODY = bodies.JobBody()
WAIT_BODY = bodies.WaitBody()
POLL_S = (1, 30)  # the least and the most seconds of Retry-After


class JobsView(ApiView):
    query_parameters = {"GET": ("limit", "outputs", *job_pages.FILTERS)}
    elsewhere = {"POST": bodies.JobBody.elsewhere}

    @operations.list_jobs
    def get(self, request: HttpRequest) -> HttpResponse:
        found, following = job_pages.load_page(self.principal, request.GET)
        shown = {"with_output": job_pages.wants_outputs(request.GET), "plain": self.wants_plain_outputs(request)}
        return codec.make_json_response(
            {"items": [resources.make_job_document(job, **shown) for job in found], "next": following}
        )

    @operations.submit_job
    def post(self, request: HttpRequest) -> HttpResponse:
        submission = bodies.make_submission(JOB_BODY.run_validation(read_json(request)))
        wait_s = bodies.read_preferred_wait(request.META.get("HTTP_PREFER", ""))
        job = jobs.submit(self.add_request_terms(request, submission))
        plain = self.wants_plain_outputs(request)
        if wait_s is None:
            return make_accepted_response(job, plain=plain)
        with self.take_wait_slot(wait_s) as granted_s:
            job = jobs.try_to_wait_for_job(job, timeout_s=granted_s)
        response = answer_job(job, plain=plain) if job.is_finished else make_accepted_response(job, plain=plain)
        response.headers["Preference-Applied"] = f"wait={wait_s}"
        return response


class JobView(ApiView):
    is_cancellable = True
    query_parameters = {"GET": ("wait",)}

    @operations.get_job
    def get(self, request: HttpRequest, job_id: str) -> HttpResponse:
        job = self.wait_for_job(request, job_id)
        return add_etag(request, answer_job(job, plain=self.wants_plain_outputs(request)))

    @operations.delete_job
    def delete(self, request: HttpRequest, job_id: str) -> HttpResponse:
        jobs.delete(get_changeable_job(self.principal, job_id))
        return codec.make_json_response({"id": job_id, "object": "job", "deleted": True})


class OutputView(ApiView):
    query_parameters = {"GET": ("wait",)}

    @operations.get_output
    def get(self, request: HttpRequest, job_id: str) -> HttpResponse:
        job = self.wait_for_job(request, job_id)
        return answer_output(self, request, job)


class WaitView(ApiView):
    query_parameters = {"POST": ("wait",)}

    @operations.wait_for_jobs
    def post(self, request: HttpRequest) -> HttpResponse:
        """Answer with the finished jobs, and with Retry-After if there is none because there was no room to wait."""
        wait_s = bodies.read_seconds(request.GET, "wait") or 0.0
        ids = bodies.read_job_ids(WAIT_BODY.run_validation(read_json(request))["ids"])
        with self.take_wait_slot(wait_s) as granted_s:
            shown = wait_for_finished_jobs(
                self.principal, ids, wait_s=granted_s, plain=self.wants_plain_outputs(request)
            )
        return codec.make_json_response(
            shown, headers=None if shown["items"] or self.kept_waiting else {"Retry-After": "1"}
        )


class StreamView(ApiView):
    query_parameters = {"GET": ("last_event_id", *streaming.QUERY)}

    @operations.stream_job
    def get(self, request: HttpRequest, job_id: str) -> HttpResponseBase:
        job = get_visible_job(self.principal, job_id)
        streaming.require_streamable_job(job)
        written = partial(events.write_events, plain=self.wants_plain_outputs(request))
        return streaming.answer_stream(self, request, lambda: job, written, after=streaming.read_position(request, job))


class CancelView(ApiView):
    @operations.cancel_job
    def post(self, request: HttpRequest, job_id: str) -> HttpResponse:
        shown = cancel_own_job(self.principal, job_id, plain=self.wants_plain_outputs(request))
        return codec.make_json_response(shown)


class RetryView(ApiView):
    @operations.retry_job
    def post(self, request: HttpRequest, job_id: str) -> HttpResponse:
        """Submit the job again. The new job has the owner of the old one, whichever principal runs it again."""
        old = get_changeable_job(self.principal, job_id)
        again = self.add_request_terms(request, jobs.make_resubmission(old))
        job = jobs.submit(dataclasses.replace(again, owner=old.owner))
        return make_accepted_response(job, plain=self.wants_plain_outputs(request))


def cancel_own_job(principal: Principal, job_id: str, *, plain: bool) -> dict[str, Any]:
    """Cancel a job, and return its document. Raises the errors of `get_changeable_job`."""
    job = jobs.cancel(get_changeable_job(principal, job_id).id)
    was_running = job.status == Status.CANCELLED and job.started_at is not None
    return {**resources.make_job_document(job, plain=plain), "was_running": was_running}


def wait_for_finished_jobs(principal: Principal, ids: list[UUID], *, wait_s: float, plain: bool) -> dict[str, Any]:
    """Return the jobs that are finished, once there is one of them, as many as one answer holds.

    `missing` are the ids for which the principal sees no job. `left` is the number of all others not in the answer.
    """
    ended, missing = jobs.wait_for_any(ids, principal.visible_jobs, timeout_s=wait_s)
    found, _ = jobs_with_outputs.load_job_page(Job.objects.filter(pk__in=ended).order_by("pk"), len(ids))
    return {
        "items": [resources.make_job_document(job, plain=plain) for job in found],
        "missing": [
            {"id": job_id, "code": "job_gone" if retention.may_have_been_removed(job_id) else "job_not_found"}
            for job_id in missing
        ],
        "left": len(ids) - len(found) - len(missing),
    }


def make_job_address(job: Job) -> str:
    return f"/v1/jobs/{job.id}"


def answer_job(job: Job, *, plain: bool) -> HttpResponse:
    if job.is_finished:
        return codec.make_json_response(resources.make_job_document(job, plain=plain))
    document = resources.make_document_with_position(job)
    return codec.make_json_response(
        document, headers={"Retry-After": find_retry_after(document.get("estimated_wait_s"))}
    )


def make_accepted_response(job: Job, *, plain: bool) -> HttpResponse:
    """Return the answer to a submission. The job of an idempotency key may be finished already."""
    headers = {"Location": make_job_address(job), "Retry-After": find_retry_after(admission.estimate_wait_s(job))}
    return codec.make_json_response(resources.make_job_document(job, plain=plain), status=202, headers=headers)


def answer_output(view: ApiView, request: HttpRequest, job: Job, spec: ModelSpec | None = None) -> HttpResponse:
    """Return the output alone: 504 while there is none, a problem if there will be none."""
    if job.status == Status.SUCCEEDED:
        user_agent = request.META.get("HTTP_USER_AGENT", "")
        shown = resources.make_output(job, user_agent, spec, plain=view.wants_plain_outputs(request))
        return codec.make_json_response(shown, headers={"Content-Location": f"{make_job_address(job)}/output"})
    if job.is_finished:
        return problems.make_job_problem(job)
    at_once = "" if view.kept_waiting else "Too many of your requests wait already: this one was answered at once."
    goes_on = (
        f"The job is {job.status}. It goes on: GET {make_job_address(job)} or {make_job_address(job)}/output later."
    )
    return problems.make_problem(
        "not_finished",
        " ".join(filter(None, (at_once, readiness.explain_job_wait(job), goes_on))),
        headers={"Location": make_job_address(job), "Retry-After": find_retry_after(admission.estimate_wait_s(job))},
        job_id=str(job.id),
    )


def find_retry_after(wait_s: float | None) -> str:
    """Return the seconds after which to look again: the estimated wait, within `POLL_S`."""
    low, high = POLL_S
    return str(min(max(math.ceil(wait_s or 0), low), high))
