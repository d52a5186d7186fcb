"""The admin pages of file batches: how far each is, what failed in it, its files, and how to cancel it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from api.admin.stored_files import find_by_public_id, render_file_link
from api.file_batches.batches import cancel_batch
from api.file_batches.progress import BatchProgress, count_outcomes, measure_progress
from api.models import BatchStatus, FileBatch
from inference.admin.filters import BoundedList, OwnerFilter
from inference.admin.read_only_admin import ReadOnlyAdmin
from inference.admin.rendering import display

CANCELLABLE = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)


class BatchList(BoundedList):
    """A page of the list, whose batches have their progress from one query."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        progress = measure_progress(self.result_list)
        for batch in self.result_list:
            batch.progress = progress[batch.id]


def draw_progress(progress: BatchProgress) -> SafeString | str:
    if not progress.total:
        return display.NONE  # the lines are not counted yet, or the file was refused
    return format_html(
        '<meter class="meter" max="{}" value="{}" aria-hidden="true"></meter>{}',
        progress.total,
        progress.answered,
        progress,
    )


def render_status(status: str) -> SafeString:
    return display.render_badge(status.replace("_", " "))


def format_rate(per_minute: float) -> str:
    return f"{per_minute:,.0f}" if per_minute >= 10 else f"{per_minute:.1f}"


@admin.register(FileBatch)
class FileBatchAdmin(ReadOnlyAdmin):
    about = "A file batch answers the lines of a file that a client stored, from POST /v1/batches."
    steered_by = "api.change_filebatch"
    list_display = (
        "short_id", "owner_name", "endpoint", "model_name", "status_now", "answered", "failed_now", "rate", "time_left",
        "window_end", "created",
    )  # fmt: skip
    list_filter = ("status", OwnerFilter)
    list_select_related = ("owner",)
    list_per_page = list_max_show_all = 25  # a running batch of 50,000 lines takes 25 ms to count
    search_fields = ("id",)  # shows the box; get_search_results does the work
    search_help_text = "Enter the id of a file batch in full."
    actions = ("cancel",)
    change_form_template = "api/file_batch.html"
    fieldsets = (
        ("File batch", {"fields": ("shown_id", "endpoint", "model_name", "window_in_full", "metadata_shown")}),
        ("Files", {"fields": ("input_shown", "output_shown", "errors_shown")}),
        ("Times", {"fields": ("created_in_full", "begun", "finalizing", "cancelling", "ended")}),
        ("Client", {"fields": ("owner_name", "api_key", "request_id_shown")}),
    )

    short_id = display.make_column(
        "id", "public_id", lambda shown: format_html('<code title="{}">…{}</code>', shown, shown[-8:])
    )
    shown_id = display.make_column("id", "public_id")
    owner_name = display.make_column("owner", "owner", lambda owner: display.escape_text(str(owner)))
    model_name = display.make_column("model", "model", display.escape_text)
    status_now = display.make_column("status", "status", render_status)
    answered = display.make_column("answered", "progress", draw_progress)
    failed_now = display.make_column("failed", "progress", lambda progress: f"{progress.failed:,}")
    window_in_full = display.make_column("window ends", "expires_at", display.format_moment)
    created = display.make_column("created", "created_at", display.render_relative_time)
    created_in_full = display.make_column("created", "created_at", display.format_moment)
    begun = display.make_column("in progress", "in_progress_at", display.format_moment)
    finalizing = display.make_column("finalizing", "finalizing_at", display.format_moment)
    cancelling = display.make_column("cancelling", "cancelling_at", display.format_moment)
    ended = display.make_column("ended", "ended_at", display.format_moment)
    input_shown = display.make_column("input", "input_file", render_file_link)
    output_shown = display.make_column("output", "output_file", render_file_link)
    errors_shown = display.make_column("errors", "error_file", render_file_link)
    metadata_shown = display.make_column("metadata", "metadata", display.format_json)
    api_key = display.make_column("API key", "key_start", lambda start: f"{display.escape_text(start)}…")
    request_id_shown = display.make_column("request id", "request_id", display.escape_text)

    @admin.display(description="lines/min")
    def rate(self, batch: Any) -> str:
        per_minute = batch.progress.per_minute
        return display.NONE if per_minute is None else format_rate(per_minute)

    @admin.display(description="window ends")
    def window_end(self, batch: FileBatch) -> SafeString | str:
        return display.NONE if batch.is_finished else display.render_relative_time(batch.expires_at)

    @admin.display(description="time left")
    def time_left(self, batch: Any) -> str:
        return display.format_duration(batch.progress.left_s)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[BatchList]:
        return BatchList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[FileBatch], search_term: str
    ) -> tuple[QuerySet[FileBatch], bool]:
        return find_by_public_id(queryset, search_term, "batch_"), False

    def make_page_context(self, request: HttpRequest, row: FileBatch) -> dict[str, Any]:
        progress = measure_progress([row])[row.id]
        return {
            "title": f"File batch …{row.public_id[-8:]}",
            "progress": progress,
            "status": render_status(row.status),
            "per_minute": progress.per_minute and format_rate(progress.per_minute),
            "failed": f"{progress.failed:,}",
            "outcomes": [
                (status, code, f"{count:,}", make_job_list_url(row, status, code))
                for status, code, count in count_outcomes(row)
            ],
            "jobs": make_job_list_url(row),
            "can_cancel": row.status in CANCELLABLE,
            "may_cancel": self.has_steer_permission(request),
        }

    def get_urls(self) -> list[URLPattern]:
        return [
            path("<uuid:pk>/cancel/", self.make_button_view(self.cancel_file_batch), name="api_filebatch_cancel"),
            *super().get_urls(),
        ]

    def cancel_file_batch(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        batch = get_object_or_404(FileBatch, pk=pk)
        self.cancel(request, FileBatch.objects.filter(pk=batch.pk))
        return redirect("admin:api_filebatch_change", pk)

    @admin.action(description="Cancel the selected file batches", permissions=["steer"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[FileBatch]) -> None:
        """Cancel batches that have not ended. What runs of them is answered, and the answers are kept."""
        chosen = queryset.count()  # before the changes: the list may be filtered by status
        cancelled = [batch for batch in queryset.filter(status__in=CANCELLABLE) if cancel_batch(batch)]
        for batch in cancelled:
            self.log_change(request, batch, "Cancelled.")
        if cancelled:
            text = f"Cancelled: {len(cancelled):,}. What runs is still answered, and all answers are kept."
            self.message_user(request, text, messages.SUCCESS)
        if left := chosen - len(cancelled):
            self.message_user(request, f"Not changed: {left:,}, which ended or are about to end.", messages.WARNING)


def make_job_list_url(batch: FileBatch, status: str = "", error_code: str = "") -> str:
    """Return the URL of the list of a batch's jobs, or of those with this status and error code."""
    query = {"bulk": batch.id, "status__exact": status, "error_code": error_code}
    chosen = urlencode({name: value for name, value in query.items() if value})
    return f"{reverse('admin:inference_job_changelist')}?{chosen}"
