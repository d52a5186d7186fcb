"""API keys in the admin: made (and shown once), looked at, revoked."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from api.models import ApiKey


@admin.register(ApiKey)
class ApiKeyAdmin(admin.ModelAdmin):
    list_display = ("start", "name", "owner", "state", "created_at", "expires_at", "last_used_at")
    list_filter = ("owner",)
    list_select_related = ("owner",)
    search_fields = ("start", "name", "owner__username")
    fields = ("owner", "name", "expires_at", "requests_per_minute", "max_queued")
    autocomplete_fields = ("owner",)
    actions = ("revoke",)

    def get_readonly_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> tuple[str, ...]:
        return ("owner",) if obj else ()

    @admin.display(description="state")
    def state(self, key: ApiKey) -> str:
        if key.revoked_at:
            return "revoked"
        return "expired" if key.expires_at and key.expires_at <= timezone.now() else "valid"

    @admin.action(description="Revoke the selected keys")
    def revoke(self, request: HttpRequest, keys: QuerySet[ApiKey]) -> None:
        for key in keys:
            key.revoke()
        self.message_user(request, f"{len(keys)} keys no longer open.", messages.SUCCESS)

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:
        if change:
            super().save_model(request, obj, form, change)
            return
        row, key = ApiKey.objects.issue(**form.cleaned_data)
        obj.pk = row.pk
        self.message_user(request, f"The key is {key} and is not shown again.", messages.WARNING)
