"""/v1/models: what is served, and the blocking call."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from api import codec
from api.answers import huggingface, resources
from api.openapi import operations
from api.requests import bodies
from api.views.base import ApiView, body_of, media_type
from api.views.jobs import output
from inference.catalog.lookup import models, spec_of
from inference.models import Job, Status
from inference.submission import jobs
from inference.submission.submissions import Submission


class ModelsView(ApiView):
    @operations.list_models
    def get(self, request: HttpRequest) -> HttpResponse:
        return codec.answer({"items": [resources.model(spec) for spec in models().values()]})


class ModelView(ApiView):
    query_parameters = {"POST": ("timeout",)}

    @operations.get_model
    def get(self, request: HttpRequest, name: str) -> HttpResponse:
        return codec.answer(resources.model(spec_of(name)))

    @operations.run_model
    def post(self, request: HttpRequest, name: str) -> HttpResponse:
        submission = huggingface.read(spec_of(name), body_of(request), media_type(request))
        return output(self, request, run(self, request, submission), submission.spec)


class CompletionView(ApiView):
    query_parameters = {"POST": ("timeout",)}

    @operations.complete
    def post(self, request: HttpRequest, name: str) -> HttpResponse:
        bodies.json_only(media_type(request))
        spec = spec_of(name)
        job = run(self, request, huggingface.read_completion(spec, codec.loads(body_of(request))))
        if job.status == Status.SUCCEEDED:
            return codec.answer(huggingface.completion(spec, job.output))
        return output(self, request, job, spec)


def run(view: ApiView, request: HttpRequest, submission: Submission) -> Job:
    """The job, finished or not within ?timeout=."""
    asked_s = bodies.seconds(request.GET, "timeout")
    timeout_s = bodies.DEFAULT_TIMEOUT_S if asked_s is None else asked_s
    with view.slot(timeout_s) as granted_s:
        return jobs.run(view.attributed(request, submission), timeout_s=granted_s)
