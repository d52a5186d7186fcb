from __future__ import annotations

import datetime
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from inference.admin import display
from inference.admin.readonly import ReadOnlyAdmin
from inference.models import Worker, WorkerState

MIB = 2**20
ENDED = (WorkerState.STOPPED, WorkerState.GONE)


def live_state(worker: Worker) -> str:
    """The state it reported, or "silent" once its heartbeat is late: the reconciler is about to call it gone."""
    if worker.state in ENDED:
        return worker.state
    silent = timezone.now() - worker.heartbeat_at > datetime.timedelta(seconds=settings.WORKER_SILENT_S)
    return "silent" if silent else worker.state


def _memory(replica: dict[str, Any]) -> str:
    """Of a worker of an earlier version: unknown."""
    taken = replica.get("memory", {})
    return ", ".join(f"{name}: {size / MIB:,.0f} MiB" for name, size in taken.items()) or display.NONE


def _generates(entry: tuple[str, dict[str, Any]]) -> str:
    name, figures = entry
    first_s = figures["first_token_s"]
    first = f", first token after {first_s['p50']:g} s, 95 % within {first_s['p95']:g} s" if first_s["p50"] else ""
    return (
        f"{name}: {figures['rows']} rows, room for {figures['room']:,} tokens,"
        f" {figures['tokens_per_s']:g} tokens a second{first}"
    )


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    list_display = (
        "name", "state_now", "models", "device_names", "replicas_now", "held", "rate", "finished", "heartbeat",
        "started",
    )  # fmt: skip
    list_filter = ("state",)
    fieldsets = (
        (None, {"fields": ("id", "name", "pid", "state_now", "heartbeat", "started")}),
        ("Models", {"fields": ("models", "error_shown", "speeds_shown", "generation_shown")}),
        ("Replicas", {"fields": ("replicas_now", "device_names", "replicas_shown")}),
        ("Load", {"fields": ("held", "rate", "finished")}),
    )

    @admin.display(description="state")
    def state_now(self, worker: Worker) -> SafeString:
        return display.badge(live_state(worker))

    models = display.fact("models", "model_names", ", ".join)
    device_names = display.fact("devices", "devices", ", ".join)
    rate = display.fact("jobs/s", "jobs_per_s", "{:.1f}".format)
    heartbeat = display.fact("heartbeat", "heartbeat_at", display.ago)
    started = display.fact("started", "started_at", display.ago)
    error_shown = display.fact("error", "error", display.block)
    generation_shown = display.fact(
        "generates step by step", "generation", lambda models: "; ".join(map(_generates, models.items()))
    )
    speeds_shown = display.fact(
        "items a second", "speeds", lambda speeds: ", ".join(f"{name}: {speed:.1f}" for name, speed in speeds.items())
    )

    @admin.display(description="replicas")
    def replicas_now(self, worker: Worker) -> str:
        return f"{worker.replicas_ready} of {worker.replicas_total} ready, {worker.replicas_busy} busy"

    @admin.display(description="by replica")
    def replicas_shown(self, worker: Worker) -> SafeString | str:
        rows = [
            (index, replica["pid"], replica["device"], display.pretty_json(replica["models"]), _memory(replica))
            for index, replica in sorted(worker.replicas.items())
        ]
        head = mark_safe("<tr><th>replica</th><th>process</th><th>device</th><th>models</th><th>memory</th></tr>")
        body = format_html_join("", "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>", rows)
        return format_html("<table>{}{}</table>", head, body) if rows else display.NONE
