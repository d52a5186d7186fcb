from __future__ import annotations

import datetime

from django.conf import settings
from django.contrib import admin
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from inference.admin import display
from inference.admin.readonly import ReadOnlyAdmin
from inference.models import Worker, WorkerState

ENDED = (WorkerState.STOPPED, WorkerState.GONE)


def live_state(worker: Worker) -> str:
    """The state it reported, or "silent" once its heartbeat is late: the reconciler is about to call it gone."""
    if worker.state in ENDED:
        return worker.state
    silent = timezone.now() - worker.heartbeat_at > datetime.timedelta(seconds=settings.WORKER_SILENT_S)
    return "silent" if silent else worker.state


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    list_display = (
        "name", "state_now", "models", "device_names", "replicas_now", "held", "rate", "finished", "heartbeat",
        "started",
    )  # fmt: skip
    list_filter = ("state",)
    sortable_by = ()
    fieldsets = (
        (None, {"fields": ("id", "name", "pid", "state_now", "heartbeat", "started")}),
        ("Models", {"fields": ("models", "error_shown", "speeds_shown")}),
        ("Replicas", {"fields": ("replicas_now", "device_names", "replicas_shown")}),
        ("Load", {"fields": ("held", "rate", "finished")}),
    )

    @admin.display(description="state")
    def state_now(self, worker: Worker) -> SafeString:
        return display.badge(live_state(worker))

    @admin.display(description="models")
    def models(self, worker: Worker) -> str:
        return ", ".join(worker.model_names) or display.NONE

    @admin.display(description="devices")
    def device_names(self, worker: Worker) -> str:
        return ", ".join(worker.devices) or display.NONE

    @admin.display(description="replicas")
    def replicas_now(self, worker: Worker) -> str:
        return f"{worker.replicas_ready} of {worker.replicas_total} ready, {worker.replicas_busy} busy"

    @admin.display(description="jobs/s")
    def rate(self, worker: Worker) -> str:
        return f"{worker.jobs_per_s:.1f}"

    @admin.display(description="heartbeat")
    def heartbeat(self, worker: Worker) -> SafeString | str:
        return display.ago(worker.heartbeat_at)

    @admin.display(description="started")
    def started(self, worker: Worker) -> SafeString | str:
        return display.ago(worker.started_at)

    @admin.display(description="error")
    def error_shown(self, worker: Worker) -> SafeString | str:
        return display.block(worker.error) if worker.error else "none"

    @admin.display(description="items a second")
    def speeds_shown(self, worker: Worker) -> str:
        return ", ".join(f"{name}: {speed:.1f}" for name, speed in worker.speeds.items()) or display.NONE

    @admin.display(description="by replica")
    def replicas_shown(self, worker: Worker) -> SafeString | str:
        rows = [
            (index, replica["pid"], replica["device"], display.pretty_json(replica["models"]))
            for index, replica in sorted(worker.replicas.items())
        ]
        head = mark_safe("<tr><th>replica</th><th>process</th><th>device</th><th>models</th></tr>")
        body = format_html_join("", "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>", rows)
        return format_html("<table>{}{}</table>", head, body) if rows else display.NONE
