"""The admin pages of API keys, where keys are made (and shown once), looked at and revoked."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.db.models import OuterRef, Q, QuerySet, Subquery, Sum, Value
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from api import auth
from api.models import ApiKey, KeyUse
from inference import clock
from inference.admin import api_key_hook
from inference.admin.rendering import display, svg
from inference.telemetry.plurals import format_count

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser, PermissionsMixin
    from django.db.models import ForeignKey
    from django.forms import BaseForm, ModelForm

MINUTE, HOUR, DAY = datetime.timedelta(minutes=1), datetime.timedelta(hours=1), datetime.timedelta(days=1)


def _floor_to_hour(moment: datetime.datetime) -> datetime.datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def _make_usage_expression(moment: datetime.datetime) -> Coalesce:
    """Return the expression for the number of requests with each key since `moment`."""
    uses = KeyUse.objects.filter(key=OuterRef("pk"), hour__gte=moment).order_by().values("key")
    return Coalesce(Subquery(uses.annotate(all=Sum("requests")).values("all")), 0)


def list_manageable_users(user: PermissionsMixin | AnonymousUser) -> QuerySet[Any]:
    """Return the users whose keys `user` may make and change. Users that may do more than `user` are not among them.

    Keys of staff read every job, so `user` is among them only with the right to view jobs.
    """
    users = get_user_model().objects
    if user.is_superuser:
        return users.all()
    below = Q(is_staff=False, is_superuser=False)
    return users.filter(below | Q(pk=user.pk) if user.has_perm("inference.view_job") else below)


def list_visible_keys(user: PermissionsMixin | AnonymousUser) -> QuerySet[ApiKey]:
    """Return the keys that `user` may look at: all, or none without the right to view or change keys."""
    may = user.has_perm("api.view_apikey") or user.has_perm("api.change_apikey")
    return ApiKey.objects.all() if may else ApiKey.objects.none()


api_key_hook.issued = list_visible_keys


def may_manage_key(user: PermissionsMixin | AnonymousUser, key: ApiKey | None) -> bool:
    return key is None or list_manageable_users(user).filter(pk=key.owner_id).exists()


@admin.register(ApiKey)
class ApiKeyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic at run time
    about = "An API key lets a client call the API in the name of a user. Add one, or use manage.py create_api_key."
    list_display = (
        "shown_start", "name", "owner", "state_now", "last_used", "requests", "current_request_rate", "request_share",
        "expires", "jobs",
    )  # fmt: skip
    list_filter = ("owner",)
    list_select_related = ("owner",)
    search_fields = ("start", "name", "owner__username")
    fields = ("owner", "name", "expires_at", "requests_per_minute", "max_queued", "may_use_high")
    autocomplete_fields = ("owner",)
    actions = ("revoke",)

    shown_start = display.make_column("key", "start", "{}…".format, ordering="start")
    last_used = display.make_column("last used", "last_used_at", display.render_relative_time, ordering="last_used_at")
    expires = display.make_column("expires", "expires_at", display.render_relative_time, ordering="expires_at")

    def get_readonly_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> tuple[str, ...]:
        return ("owner", "last_day") if obj else ()

    def get_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> tuple[str, ...]:
        return (*self.fields, "last_day") if obj else self.fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[ApiKey]:
        """Return the keys, with the number of requests of each key and of all keys together."""
        now = clock.get_database_time()
        day, hour = now - DAY, _floor_to_hour(now) - HOUR
        of_all = KeyUse.objects.filter(hour__gte=day).aggregate(all=Sum("requests"))["all"] or 0
        keys: QuerySet[ApiKey] = super().get_queryset(request)
        return keys.annotate(
            used_day=_make_usage_expression(day), used_hour=_make_usage_expression(hour), of_all=Value(of_all)
        )

    @admin.display(description="requests, 24 h", ordering="used_day")
    def requests(self, key: Any) -> str:
        return f"{key.used_day:,}"

    @admin.display(description="share, 24 h", ordering="used_day")
    def request_share(self, key: Any) -> str:
        return f"{key.used_day / key.of_all:.1%}" if key.of_all else "-"

    @admin.display(description="requests/min", ordering="used_hour")
    def current_request_rate(self, key: Any) -> str:
        """Return the requests a minute over the current hour and the one before it, and the limit if there is one."""
        now = clock.get_database_time()
        most = auth.get_limit_or_default(key.requests_per_minute, settings.API_KEY_RATE)
        rate = key.used_hour / ((now - _floor_to_hour(now) + HOUR) / MINUTE)
        return f"{rate:.1f} of {most:,}" if most else f"{rate:.1f}, no limit"

    @admin.display(description="jobs")
    def jobs(self, key: ApiKey) -> SafeString:
        url = reverse("admin:inference_job_changelist")
        links = '<span><a href="{}?key_start={}">of key</a>, <a href="{}?owner={}">of owner</a></span>'
        return format_html(links, url, key.start, url, key.owner_id)

    @admin.display(description="last 24 hours")
    def last_day(self, key: ApiKey) -> SafeString:
        """Return a drawing of the requests of each of the last 24 hours."""
        now = _floor_to_hour(clock.get_database_time())
        used = dict(KeyUse.objects.filter(key=key, hour__gt=now - DAY).values_list("hour", "requests"))
        hours = [used.get(now - HOUR * ago, 0) for ago in reversed(range(24))]
        drawn, requests = svg.draw_columns(hours), f"{sum(hours):,}"
        return format_html('<div>{}<small class="help">{} requests; a column is an hour</small></div>', drawn, requests)

    @admin.display(description="state")
    def state_now(self, key: ApiKey) -> SafeString:
        if key.revoked_at:
            return display.render_badge("revoked")
        return display.render_badge(
            "expired" if key.expires_at and key.expires_at <= clock.get_database_time() else "valid"
        )

    def get_form(
        self, request: HttpRequest, obj: ApiKey | None = None, change: bool = False, **options: Any
    ) -> type[ModelForm[Any]]:
        texts = {"expires_at": "In UTC. If empty, the key does not expire."}
        return super().get_form(request, obj, change, help_texts=texts, **options)

    def formfield_for_foreignkey(self, db_field: ForeignKey[Any, Any], request: HttpRequest, **options: Any) -> Any:
        if db_field.name == "owner":
            options["queryset"] = list_manageable_users(request.user)
        return super().formfield_for_foreignkey(db_field, request, **options)

    def has_change_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        return super().has_change_permission(request, obj) and may_manage_key(request.user, obj)

    def has_delete_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        return super().has_delete_permission(request, obj) and may_manage_key(request.user, obj)

    @admin.action(description="Revoke the selected keys", permissions=["change"])
    def revoke(self, request: HttpRequest, chosen: QuerySet[ApiKey]) -> None:
        keys = chosen.filter(owner__in=list_manageable_users(request.user))
        left = chosen.exclude(owner__in=list_manageable_users(request.user)).count()
        for key in keys:
            key.revoke()
            self.log_change(request, key, "Revoked.")
        self.message_user(request, f"Revoked {format_count(len(keys), 'key')}.", messages.SUCCESS)
        if left:
            self.message_user(
                request,
                f"{format_count(left, 'key', ('is', 'are'))} not revoked: the owner has permissions that you lack.",
                messages.ERROR,
            )

    def save_model(self, request: HttpRequest, obj: ApiKey, form: BaseForm, change: bool) -> None:
        if change:
            super().save_model(request, obj, form, change)
            return
        row, key = ApiKey.objects.issue_key(**form.cleaned_data)
        obj.pk = row.pk
        self.message_user(request, f"The key is {key}. Copy it now: it is not shown again.", messages.WARNING)
