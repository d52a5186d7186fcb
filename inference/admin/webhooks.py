from __future__ import annotations

from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from inference.admin import display
from inference.admin.readonly import ReadOnlyAdmin
from inference.models import Webhook


@admin.register(Webhook)
class WebhookAdmin(ReadOnlyAdmin):
    list_display = ("address", "state_now", "attempts", "due", "failure", "of_job")
    list_filter = ("state",)
    ordering = ("-id",)
    fields = list_display

    address = display.fact("address", "url", display.visible)
    state_now = display.fact("state", "state", display.badge)
    due = display.fact("due", "due_at", display.ago)
    failure = display.fact("last failure", "last_error", display.visible)

    @admin.display(description="job")
    def of_job(self, webhook: Webhook) -> SafeString:
        url = reverse("admin:inference_job_change", args=[webhook.job_id])
        return format_html('<a href="{}">…{}</a>', url, webhook.job_id.hex[-8:])
