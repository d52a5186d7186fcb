from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from inference import row_locks
from inference.admin.read_only_admin import ReadOnlyAdmin
from inference.admin.rendering import display
from inference.models import Webhook, WebhookState
from inference.telemetry.plurals import format_count


@admin.register(Webhook)
class WebhookAdmin(ReadOnlyAdmin):
    about = "A webhook is a notice to a client that its job is finished. Its host must be in WEBHOOK_HOSTS."
    list_display = ("address", "state_now", "attempts", "due", "failure", "job_link")
    list_filter = ("state",)
    ordering = ("-id",)
    fields = list_display
    actions = ("send_now",)

    address = display.make_column("address", "url", display.escape_text)
    state_now = display.make_column("state", "state", display.render_badge)
    failure = display.make_column("last failure", "last_error", display.escape_text)

    @admin.display(description="next try")
    def due(self, webhook: Webhook) -> SafeString | str:
        """Return when a notice that is still to be sent is due."""
        return display.render_relative_time(webhook.due_at) if webhook.state == WebhookState.PENDING else display.NONE

    @admin.display(description="job")
    def job_link(self, webhook: Webhook) -> SafeString:
        url = reverse("admin:inference_job_change", args=[webhook.job_id])
        return format_html('<a href="{}">…{}</a>', url, webhook.job_id.hex[-8:])

    def make_page_context(self, request: HttpRequest, row: Webhook) -> dict[str, Any]:
        return {"title": "Webhook", "subtitle": ""}  # the fields have the address and the job

    @admin.action(description="Send the selected notices now", permissions=["steer"])
    def send_now(self, request: HttpRequest, queryset: QuerySet[Webhook]) -> None:
        """Make notices due now, also those that were given up, with all of their tries before them."""
        undelivered = queryset.exclude(state=WebhookState.DELIVERED)
        LogEntry.objects.log_actions(str(request.user.pk), list(undelivered[:100]), CHANGE, "Requested to send it now.")
        count = row_locks.update_rows(undelivered, state=WebhookState.PENDING, attempts=0, due_at=Now())
        self.message_user(request, f"{format_count(count, 'notice', ('is', 'are'))} due now.", messages.SUCCESS)
