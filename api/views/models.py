"""/v1/models: what is served, and the blocking call."""

from __future__ import annotations

from django.http import HttpResponse
from rest_framework.request import Request

from api import codec
from api.answers import huggingface, resources
from api.openapi import operations
from api.requests import bodies
from api.views.base import ApiView, body_of, json_only
from api.views.jobs import output
from inference.catalog.lookup import models, spec_of
from inference.models import Job, Priority, Status
from inference.submission import jobs


class ModelsView(ApiView):
    @operations.list_models
    def get(self, request: Request) -> HttpResponse:
        return codec.answer({"items": [resources.model(spec) for spec in models().values()]})


class ModelView(ApiView):
    query_parameters = {"POST": ("timeout",)}

    @operations.get_model
    def get(self, request: Request, name: str) -> HttpResponse:
        return codec.answer(resources.model(spec_of(name)))

    @operations.run_model
    def post(self, request: Request, name: str) -> HttpResponse:
        call = huggingface.read(spec_of(name), body_of(request), request.META.get("CONTENT_TYPE", ""))
        return output(self, request, run(self, request, name, call))


class CompletionView(ApiView):
    query_parameters = {"POST": ("timeout",)}

    @operations.complete
    def post(self, request: Request, name: str) -> HttpResponse:
        json_only(request)
        spec = spec_of(name)
        job = run(self, request, name, huggingface.read_completion(spec, codec.loads(body_of(request))))
        if job.status == Status.SUCCEEDED:
            return codec.answer(huggingface.completion(spec, job.output))
        return output(self, request, job)


def run(view: ApiView, request: Request, name: str, call: huggingface.Call) -> Job:
    """The job, finished or not within ?timeout=."""
    asked_s = bodies.seconds(request.GET, "timeout")
    timeout_s = bodies.DEFAULT_TIMEOUT_S if asked_s is None else asked_s
    with view.slot(timeout_s) as granted_s:
        return jobs.run(
            timeout_s=granted_s,
            model=name,
            inputs=call.inputs,
            parameters=call.parameters,
            **view.submitter(request, Priority.NORMAL),
        )
