"""/v1/jobs: submit, look, wait, cancel, run again, list."""

from __future__ import annotations

import dataclasses
import math

from django.http import HttpRequest, HttpResponse

from api import codec, errors
from api.answers import resources
from api.openapi import operations
from api.requests import bodies, listing
from api.views.base import ApiView, with_etag
from inference.catalog.specs import ModelSpec
from inference.models import Job, Status
from inference.submission import admission, jobs

JOB_BODY = bodies.JobBody()
POLL_S = (1, 30)  # what Retry-After may say


class JobsView(ApiView):
    query_parameters = {"GET": ("limit", *listing.FILTERS)}
    elsewhere = {"POST": bodies.JobBody.elsewhere}

    @operations.list_jobs
    def get(self, request: HttpRequest) -> HttpResponse:
        found, following = listing.page(self.principal, request.GET)
        return codec.answer({"items": [resources.job(job, with_output=False) for job in found], "next": following})

    @operations.submit_job
    def post(self, request: HttpRequest) -> HttpResponse:
        submission = bodies.submission(self.document(request, JOB_BODY))
        wait_s = bodies.preferred_wait(request.META.get("HTTP_PREFER", ""))
        job = jobs.submit(self.attributed(request, submission))
        if wait_s is None:
            return accepted(job)
        with self.slot(wait_s) as granted_s:
            job = jobs.wait_for(job, timeout_s=granted_s)
        response = answered(job) if job.is_finished else accepted(job)
        response.headers["Preference-Applied"] = f"wait={wait_s}"
        return response


class JobView(ApiView):
    is_cancellable = True
    query_parameters = {"GET": ("wait",)}

    @operations.get_job
    def get(self, request: HttpRequest, job_id: str) -> HttpResponse:
        return with_etag(request, answered(self.waited_for(request, job_id)))


class OutputView(ApiView):
    query_parameters = {"GET": ("wait",)}

    @operations.get_output
    def get(self, request: HttpRequest, job_id: str) -> HttpResponse:
        job = self.waited_for(request, job_id)
        return output(self, request, job)


class CancelView(ApiView):
    @operations.cancel_job
    def post(self, request: HttpRequest, job_id: str) -> HttpResponse:
        job = jobs.cancel(self.fetch(job_id).id)
        was_running = job.status == Status.CANCELLED and job.started_at is not None
        return codec.answer({**resources.job(job), "was_running": was_running})


class RetryView(ApiView):
    @operations.retry_job
    def post(self, request: HttpRequest, job_id: str) -> HttpResponse:
        """The new job has the owner of the old one, whoever runs it again."""
        old = self.fetch(job_id)
        again = self.attributed(request, jobs.again(old))
        return accepted(jobs.submit(dataclasses.replace(again, owner=old.owner)))


def location(job: Job) -> str:
    return f"/v1/jobs/{job.id}"


def answered(job: Job) -> HttpResponse:
    if job.is_finished:
        return codec.answer(resources.job(job))
    document = resources.waiting_job(job)
    return codec.answer(document, headers={"Retry-After": retry_after(document.get("estimated_wait_s"))})


def accepted(job: Job) -> HttpResponse:
    headers = {"Location": location(job), "Retry-After": retry_after(admission.wait_s(job.model, job.priority))}
    return codec.answer(resources.job(job), status=202, headers=headers)


def output(view: ApiView, request: HttpRequest, job: Job, spec: ModelSpec | None = None) -> HttpResponse:
    """The output alone; 504 while there is none, a problem when there will be none."""
    if job.status == Status.SUCCEEDED:
        shown = resources.output(job, request.META.get("HTTP_USER_AGENT", ""), spec)
        return codec.answer(shown, headers={"Content-Location": f"{location(job)}/output"})
    if job.is_finished:
        return errors.job_problem(job)
    at_once = "" if view.kept_waiting else "Too many of your requests wait already: this one was answered at once. "
    return errors.problem(
        "not_finished",
        f"{at_once}The job is {job.status}. It goes on: GET {location(job)} or {location(job)}/output later.",
        headers={"Location": location(job), "Retry-After": retry_after(admission.wait_s(job.model, job.priority))},
        job_id=str(job.id),
    )


def retry_after(wait_s: float | None) -> str:
    """When to look again: after the estimated wait, within bounds."""
    low, high = POLL_S
    return str(min(max(math.ceil(wait_s or 0), low), high))
