from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import URLPattern, path
from django.utils.safestring import SafeString

from inference import clock
from inference.admin.filters import EndedWorkerFilter
from inference.admin.read_only_admin import ReadOnlyAdmin
from inference.admin.rendering import display
from inference.fields.worker_documents import GenerationSnapshot, ReplicaSnapshot
from inference.models import Worker
from inference.status import workers
from inference.store import pauses_and_drains
from inference.telemetry.plurals import format_count


def find_live_state(worker: Worker) -> str:
    """Return the state that the worker reported, or "silent" once its heartbeat is late.

    The reconciler is about to mark a silent worker as gone.
    """
    if worker.has_ended:
        return worker.state
    silent = clock.get_database_time() - worker.heartbeat_at > datetime.timedelta(seconds=settings.WORKER_SILENT_S)
    return "silent" if silent else worker.state


def _format_device(replica: ReplicaSnapshot) -> str:
    left_s = replica.withdrawn_s
    return f"{replica.device}, failed: no work for {left_s} s" if left_s else replica.device


def _format_generation(entry: tuple[str, GenerationSnapshot]) -> str:
    name, figures = entry
    times = figures.first_token_s
    median, p95 = display.format_duration(times.p50), display.format_duration(times.p95)
    first = f", first token after {median} (median), {p95} (p95)" if times.p50 else ""
    return f"{name}: {figures.rows} rows, room for {figures.room:,} tokens, {figures.tokens_per_s:g} tokens/s{first}"


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    about = "A worker is a Celery worker that runs models. Start one with celery -A project worker."
    list_display = (
        "name", "state_now", "models", "device_names", "replicas_now", "held", "rate", "finished_jobs", "heartbeat",
        "started",
    )  # fmt: skip
    list_filter = (EndedWorkerFilter, "state")
    steered_by = "inference.change_worker"
    change_form_template = "inference/worker.html"
    fieldsets = (
        ("Worker", {"fields": ("id", "name", "pid", "state_now", "heartbeat", "started_in_full")}),
        ("Models", {"fields": ("models", "error_shown", "speeds_shown", "generation_shown")}),
        ("Load", {
            "fields": (
                "replicas_now", "device_names", "devices_chosen", "shared_devices", "held", "rate", "finished_jobs",
            ),
        }),
    )  # fmt: skip

    @admin.display(description="state")
    def state_now(self, worker: Worker) -> SafeString:
        return display.render_badge(find_live_state(worker))

    models = display.make_column("models", "model_names", ", ".join)
    device_names = display.make_column("devices", "devices", ", ".join)
    devices_chosen = display.make_column(
        "why these devices",
        "replicas",
        lambda rows: next((row.chosen for row in rows.values()), "") or display.NONE,
    )

    @admin.display(description="shared devices")
    def shared_devices(self, worker: Worker) -> str:
        beside = {} if worker.has_ended else workers.find_gpu_conflicts(worker)
        return "; ".join(f"{', '.join(both)} with {name}" for name, both in beside.items()) or display.NONE

    @admin.display(description="jobs/s")
    def rate(self, worker: Worker) -> str:
        return display.NONE if worker.has_ended else f"{worker.jobs_per_s:.1f}"

    finished_jobs = display.make_column(
        "finished", "finished", lambda jobs: f"{format_count(jobs, 'job')} since its start"
    )
    heartbeat = display.make_column("heartbeat", "heartbeat_at", display.render_relative_time)
    started = display.make_column("started", "started_at", display.render_relative_time)
    started_in_full = display.make_column("started", "started_at", display.format_moment)
    error_shown = display.make_column("error", "error", display.render_block)
    generation_shown = display.make_column(
        "generation", "generation", lambda models: "; ".join(map(_format_generation, models.items()))
    )
    speeds_shown = display.make_column(
        "items/s",
        "speeds",
        lambda speeds: ", ".join(f"{name}: {speed:,.1f}" for name, speed in speeds.items() if speed),
    )

    @admin.display(description="replicas")
    def replicas_now(self, worker: Worker) -> str:
        if worker.has_ended:
            return display.NONE
        return f"{worker.replicas_ready} of {worker.replicas_total} ready, {worker.replicas_busy} busy"

    def make_page_context(self, request: HttpRequest, row: Worker) -> dict[str, Any]:
        return {
            "title": "Worker",
            "replicas": list(list_replicas(row)),
        }

    def get_urls(self) -> list[URLPattern]:
        return [
            path("<uuid:pk>/steer/", self.make_button_view(self.drain_or_resume), name="inference_worker_steer"),
            *super().get_urls(),
        ]

    def drain_or_resume(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        worker = get_object_or_404(Worker, pk=pk)
        acts = {
            "drain": (pauses_and_drains.drain_worker, "Drained"),
            "resume": (pauses_and_drains.undrain_worker, "Resumed"),
        }
        act, what = acts.get(request.POST.get("action", ""), (None, ""))
        if act and act(pk):
            self.log_change(request, worker, f"{what}.")
            self.message_user(request, f"{what} {worker.name}. This takes effect within seconds.", messages.SUCCESS)
        return redirect("admin:inference_worker_change", pk)


def list_replicas(worker: Worker) -> Iterator[dict[str, Any]]:
    """Yield each replica with its models, and for each model why the replica does not have it."""
    for index, replica in sorted(worker.replicas.items(), key=lambda entry: int(entry[0])):
        memory = replica.memory
        models = [
            {
                "name": name,
                "state": model.state,
                "why": model.why,
                "memory": display.format_size(memory[name]) if name in memory else "",
                "note": replica.notes.get(name, ""),
            }
            for name, model in sorted(replica.models.items())
        ]
        total = sum(memory.values())
        yield {
            "index": index,
            "pid": replica.pid,
            "device": _format_device(replica),
            "models": models,
            "memory": display.format_size(total) if total else display.NONE,
        }
