"""The pages of the models: what runs of each and where, what it costs, and two acts on one, pause and resume."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, path
from django.utils.safestring import SafeString

from inference.admin.read_only_admin import ReadOnlyAdmin
from inference.admin.rendering import display, svg
from inference.batching.costs import CostModel
from inference.catalog import lookup, specs
from inference.catalog.parameters import ParameterSpec
from inference.catalog.specs import ModelSpec
from inference.models import Job, PausedModel, Status, Worker
from inference.status import owner_queues, queue_position, worker_catalogs, workers
from inference.store import pauses_and_drains
from inference.values.priority import Priority

ACTS, OWNERS = 10, 10  # acts and owners that a page shows
NOTHING: tuple[Any, ...] = (None, "", (), {}, False)


def list_model_rows() -> list[dict[str, Any]]:
    living = list(workers.select_living_workers())
    runs, served = worker_catalogs.count_workers_by_entry(living), workers.count_workers_by_model(living)
    paused = PausedModel.objects.in_bulk()
    known = lookup.get_catalog_or_empty()
    return [
        {
            "name": name,
            "spec": spec,  # None for a model that is gone from the file
            "runs": sorted(runs.get(name, {}).items()),
            "served": served[name],  # number of workers that serve it
            "queued": queue_position.count_queued_jobs(spec) if spec else 0,
            "speed": workers.measure_model_speeds().get(name),  # items a second
            "pause": paused.get(name),
        }
        for name in sorted(known.keys() | runs.keys() | paused.keys())
        for spec in [known.get(name)]
    ]


def list_entry_facts(spec: ModelSpec) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a model's entry that have a value."""
    for name in specs.list_table_keys():
        value = getattr(spec, name)
        several = value.items() if isinstance(value, Mapping) else [("", value)]
        for key, one in several:
            if one not in NOTHING:
                yield f"{name}.{key}".rstrip("."), _format_value(one)


def _format_value(value: object) -> str:
    """Return a value as it is written in the models file."""
    if not isinstance(value, ParameterSpec):
        return str(value)
    fields = dataclasses.asdict(value).items()
    return ", ".join(f"{field} = {json.dumps(bound)}" for field, bound in fields if bound not in NOTHING)


def list_model_workers(name: str, living: list[Worker]) -> Iterator[dict[str, Any]]:
    """Yield where the model runs, or why it does not."""
    for worker in living:
        for entry in worker.catalog.models:
            if entry.name == name:
                notes = {replica.notes.get(name, "") for replica in worker.replicas.values()}
                yield {
                    "worker": worker,
                    "entry": entry,
                    "memory": display.format_size(entry.memory) if entry.memory else "",
                    "notes": sorted(filter(None, notes)),
                    "speed": worker.speeds.get(name),
                }


def list_waiting_owners(model: str) -> list[dict[str, Any]]:
    """Return the owners with most waiting jobs, up to `OWNERS`.

    `jobs` are their numbers by name of the priority. `wait_s` are the seconds until the next job of normal priority
    runs, about; None while the speed is not known.
    """
    jobs: dict[Any, dict[str, int]] = defaultdict(dict)
    counts = (
        owner_queues.count_waiting_jobs(model, Priority.LOW)
        or owner_queues.count_waiting_jobs(model, Priority.NORMAL)
        or {}
    )
    for (priority, owner), count in sorted(counts.items(), key=lambda line: line[0][0]):
        jobs[owner][str(Priority(priority).label)] = count
    most = sorted(jobs, key=lambda owner: -sum(jobs[owner].values()))[:OWNERS]
    users = get_user_model()
    names = dict(users._default_manager.filter(pk__in=filter(None, most)).values_list("pk", users.USERNAME_FIELD))
    return [
        {
            "pk": owner,
            "name": names.get(owner, "no owner"),
            "jobs": jobs[owner],
            "wait_s": workers.predict_jobs_s(model, queue_position.count_jobs_ahead(model, Priority.NORMAL, owner)),
        }
        for owner in most
    ]


def draw_prediction_plots(name: str, living: list[Worker]) -> Iterator[tuple[Worker, SafeString, str]]:
    """Yield by worker a plot of the times that calls took against the times that were learnt for them."""
    for worker in living:
        costs = worker.costs.get(name)
        if costs and costs.seen:
            model = CostModel.from_snapshot(dataclasses.replace(costs, overhead_s=0.0))
            points = [
                (
                    model.predict_call_s(size, length),
                    took,
                    f"{size} of {length:g} tokens: {display.format_duration(took)}",
                )
                for size, length, took in costs.seen
            ]
            times = [took for _, _, took in costs.seen]
            shortest, longest = display.format_duration(min(times)), display.format_duration(max(times))
            beside = (
                f"{costs.calls:,} calls, of {shortest} to {longest}. Claim, record and notice add"
                f" {display.format_duration(costs.overhead_s)} and {costs.job_s * 1000:.2f} ms a job."
            )
            yield worker, svg.draw_scatter_plot(points), beside


def list_log_entries(name: str) -> QuerySet[LogEntry]:
    """Return the last acts on a model, paused or not: Django's own history page exists for a paused one only."""
    models = ContentType.objects.get_for_model(PausedModel)
    return LogEntry.objects.filter(content_type=models, object_id=name).select_related("user")[:ACTS]


@admin.register(PausedModel)
class ModelsAdmin(ReadOnlyAdmin):
    """The pages of every model, paused or not."""

    steered_by = "inference.change_pausedmodel"

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return self.render_page(request, "inference/models.html", title="Models", lines=list_model_rows)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        name, living = object_id, list(workers.select_living_workers())
        spec, where = lookup.get_catalog_or_empty().get(name), list(list_model_workers(name, living))
        pause = PausedModel.objects.select_related("paused_by").filter(pk=name).first()
        if not (spec or where or pause):
            raise Http404
        queued = Job.objects.filter(model=name, status=Status.QUEUED, parts=None)
        return self.render_page(
            request,
            "inference/model.html",
            title=display.escape_text(name),
            name=name,
            spec=spec,
            pause=pause,
            facts=list(list_entry_facts(spec)) if spec else [],
            places=where,
            plots=list(draw_prediction_plots(name, living)),
            queued=queue_position.count_queued_jobs(spec) if spec else None,
            acts=list_log_entries(name),
            owners=list_waiting_owners(name),
            oldest=queued.order_by("priority", "pk").only("created_at").first(),
        )

    def get_urls(self) -> list[URLPattern]:
        steer = self.make_button_view(self.pause_or_resume)
        return [path("<path:name>/steer/", steer, name="inference_pausedmodel_steer"), *super().get_urls()]

    def pause_or_resume(self, request: HttpRequest, name: str) -> HttpResponse:
        act = request.POST.get("action", "")
        if act == "pause" and (
            name in lookup.get_catalog_or_empty() or worker_catalogs.count_living_entries().get(name)
        ):
            self.report_pause_change(request, name, "Paused", pauses_and_drains.pause_model(name, request.user))
        elif act == "resume":
            self.report_pause_change(request, name, "Resumed", pauses_and_drains.resume_model(name))
        return redirect("admin:inference_pausedmodel_change", name)

    def report_pause_change(self, request: HttpRequest, name: str, what: str, happened: bool) -> None:
        if happened:
            self.log_change(request, PausedModel(name), f"{what}.")
            self.message_user(request, f"{what} {name}. This takes effect within seconds.", messages.SUCCESS)
