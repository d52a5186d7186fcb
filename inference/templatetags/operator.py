"""Template tags of the operator's pages, among them the places that every page links to."""

import datetime
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from django import template
from django.http import HttpRequest
from django.urls import reverse

from inference import clock
from inference.admin.pages import dashboard, workers
from inference.admin.rendering import display
from inference.catalog.lookup import get_catalog_or_empty

PLACES = (  # name, URL, and the permission that it requires
    ("Overview", "admin:index", ""),
    ("Jobs", "admin:inference_job_changelist", "inference.view_job"),
    ("Batches", "admin:inference_job_batches", "inference.view_job"),
    ("File batches", "admin:api_filebatch_changelist", "api.view_filebatch"),
    ("Files", "admin:api_storedfile_changelist", "api.view_storedfile"),
    ("Models", "admin:inference_pausedmodel_changelist", "inference.view_pausedmodel"),
    ("Workers", "admin:inference_worker_changelist", "inference.view_worker"),
    ("Webhooks", "admin:inference_webhook_changelist", "inference.view_webhook"),
    ("Actions", "admin:inference_act_changelist", "inference.view_act"),
    ("API keys", "admin:api_apikey_changelist", "api.view_apikey"),
    ("Users", "admin:auth_user_changelist", "auth.view_user"),
)

register = template.Library()
register.filter("ago", display.render_relative_time)
register.filter("badge", display.render_badge)
register.filter("live_state", workers.find_live_state)
register.filter("visible", display.escape_text)
register.filter("meter", display.draw_meter)
register.filter("took", display.format_duration)


class PageLink(NamedTuple):
    name: str
    url: str
    is_here: bool


@register.simple_tag(name="places")
def list_pages(request: HttpRequest) -> Iterator[PageLink]:
    """Yield the places that this user may see; of those that the page lies in, the innermost is marked."""
    seen = [(name, reverse(view)) for name, view, right in PLACES if not right or request.user.has_perm(right)]
    here = max((url for _, url in seen if request.path.startswith(url)), key=len, default="")
    for name, url in seen:
        yield PageLink(name, url, url == here and (url != seen[0][1] or request.path == url))


@register.filter
def age(moment: datetime.datetime | None) -> str:
    return display.format_duration(clock.get_database_time() - moment if moment else None)


@register.simple_tag
def dashboard_now() -> dict[str, Any]:
    return {**dashboard.collect_dashboard(), "names": list(get_catalog_or_empty())}


@register.filter
def listed(names: Iterable[str]) -> str:
    return display.escape_text(", ".join(names))
