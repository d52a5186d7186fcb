"""The pages of acts on many jobs: how far they are, and how to stop one."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import URLPattern, path

from inference.admin.read_only_admin import ReadOnlyAdmin
from inference.admin.rendering import display
from inference.fields.ids import extract_creation_moment
from inference.models import ACTING, Act, ActState, Worker
from inference.status import workers
from inference.telemetry.plurals import format_count
from inference.values.priority import Priority

LOOKUP_NAMES = {
    "error_code": "error", "id__gte": "accepted after", "id__endswith": "end of the id", "key_start": "API key",
    "key_start__in": "API keys", "request_id": "request id", "whole": "parts of the job",
}  # fmt: skip


def describe_selection(selection: dict[str, Any]) -> str:
    phrases = (f"{name}: {value}" for name, value in list_selection_facts(selection))
    return display.escape_text(", ".join(phrases)) or "all jobs"


def list_selection_facts(selection: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what the jobs were chosen by, in words; jobs that a search found are counted."""
    conditions = {
        LOOKUP_NAMES.get(lookup, lookup): _describe_value(lookup, value)
        for lookup, value in selection.items()
        if lookup not in ("whole__isnull", "id__in")
    }
    if found := selection.get("id__in"):
        conditions["found by search"] = format_count(len(found), "job")
    return list(conditions.items())


def _describe_value(lookup: str, value: Any) -> str:
    """Return the value of a lookup in words, or as it is if it is not what that lookup takes."""
    try:
        return _name_value(lookup, value)
    except (TypeError, ValueError, ValidationError):
        return str(value)


def _name_value(lookup: str, value: Any) -> str:
    """Return the value of a lookup, by its name if it is a key of another row that still exists."""
    match lookup:
        case "id__gte":
            return f"{extract_creation_moment(UUID(value)):%Y-%m-%d %H:%M:%S} UTC"
        case "priority":
            return str(Priority(int(value)).label)
        case "owner" | "worker":
            rows = get_user_model().objects if lookup == "owner" else Worker.objects
            return str(rows.filter(pk=value).first() or value)
        case "key_start" | "key_start__in":
            return ", ".join(f"{start}…" for start in ([value] if lookup == "key_start" else value))
    return str(value)


@admin.register(Act)
class ActAdmin(ReadOnlyAdmin):
    about = (
        "An action cancels or retries all jobs that an operator selected in a list. To begin one, filter the jobs, tick"
        " the box above them, select all and choose an action."
    )
    list_display = ("kind", "state_now", "selection_shown", "counted", "done", "left_shown", "by", "created")
    list_filter = ("state", "kind")
    list_select_related = ("by",)
    change_form_template = "inference/act.html"
    fields = ("kind", "selection_shown", "counted", "done", "left_shown", "started_by", "created", "finished")

    state_now = display.make_column("state", "state", display.render_badge)
    selection_shown = display.make_column("selection", "selection", describe_selection)
    started_by = display.make_column("by", "by", lambda user: display.escape_text(str(user)))
    created = display.make_column("started", "created_at", display.render_relative_time)
    finished = display.make_column("ended", "finished_at", display.render_relative_time)
    left_shown = display.make_column(
        "not changed",
        "left",
        lambda left: display.escape_text("; ".join(f"{count:,} {reason}" for reason, count in left.items())),
    )

    def make_page_context(self, request: HttpRequest, row: Act) -> dict[str, Any]:
        return {"title": "Action on jobs", "nobody": not workers.select_living_workers().exists()}

    def get_urls(self) -> list[URLPattern]:
        return [
            path("<uuid:pk>/stop/", self.make_button_view(self.stop_act), name="inference_act_stop"),
            *super().get_urls(),
        ]

    def stop_act(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        """Stop an act after the chunk that a worker is at."""
        act = get_object_or_404(Act, pk=pk)
        if Act.objects.filter(pk=pk, state__in=ACTING).update(state=ActState.STOPPED, finished_at=Now()):
            self.log_change(request, act, "Stopped.")
            self.message_user(request, "Stopped. Jobs that were already handled stay as they are.", messages.SUCCESS)
        return redirect("admin:inference_act_change", pk)
