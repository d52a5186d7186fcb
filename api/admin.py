"""API keys in the admin: made (and shown once), looked at, revoked."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from api.models import ApiKey


def owners(user: Any) -> QuerySet[Any]:
    """Whose keys `user` may make and change: nobody's who may do more. Keys of staff read every job."""
    users = get_user_model().objects
    if user.is_superuser:
        return users.all()
    below = Q(is_staff=False, is_superuser=False)
    return users.filter(below | Q(pk=user.pk) if user.has_perm("inference.view_job") else below)


def is_below(user: Any, key: ApiKey | None) -> bool:
    return key is None or owners(user).filter(pk=key.owner_id).exists()


@admin.register(ApiKey)
class ApiKeyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none when it runs
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

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **options: Any) -> Any:
        if db_field.name == "owner":
            options["queryset"] = owners(request.user)
        return super().formfield_for_foreignkey(db_field, request, **options)

    def has_change_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        return super().has_change_permission(request, obj) and is_below(request.user, obj)

    def has_delete_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        return super().has_delete_permission(request, obj) and is_below(request.user, obj)

    @admin.action(description="Revoke the selected keys", permissions=["change"])
    def revoke(self, request: HttpRequest, chosen: QuerySet[ApiKey]) -> None:
        keys = chosen.filter(owner__in=owners(request.user))
        left = chosen.exclude(owner__in=owners(request.user)).count()
        for key in keys:
            key.revoke()
            self.log_change(request, key, "Revoked.")
        self.message_user(request, f"{len(keys)} keys no longer open.", messages.SUCCESS)
        if left:
            self.message_user(request, f"{left} keys still open: their owners may do more than you.", messages.ERROR)

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:
        if change:
            super().save_model(request, obj, form, change)
            return
        row, key = ApiKey.objects.issue(**form.cleaned_data)
        obj.pk = row.pk
        self.message_user(request, f"The key is {key} and is not shown again.", messages.WARNING)
