from __future__ import annotations

from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from inference.admin import display
from inference.admin.filters import BoundedPaginator
from inference.admin.readonly import ReadOnlyAdmin
from inference.models import Webhook


@admin.register(Webhook)
class WebhookAdmin(ReadOnlyAdmin):
    list_display = ("address", "state_now", "attempts", "due", "failure", "of_job")
    list_filter = ("state",)
    sortable_by = ()
    ordering = ("-id",)
    paginator = BoundedPaginator
    fields = list_display

    @admin.display(description="address")
    def address(self, webhook: Webhook) -> str:
        return display.visible(webhook.url)

    @admin.display(description="state")
    def state_now(self, webhook: Webhook) -> SafeString:
        return display.badge(webhook.state.replace(" ", "-"), webhook.state)

    @admin.display(description="due")
    def due(self, webhook: Webhook) -> SafeString | str:
        return display.ago(webhook.due_at)

    @admin.display(description="last failure")
    def failure(self, webhook: Webhook) -> str:
        return display.visible(webhook.last_error) or display.NONE

    @admin.display(description="job")
    def of_job(self, webhook: Webhook) -> SafeString:
        url = reverse("admin:inference_job_change", args=[webhook.job_id])
        return format_html('<a href="{}">…{}</a>', url, webhook.job_id.hex[-8:])
