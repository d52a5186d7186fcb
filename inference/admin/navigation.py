"""The places that every page links to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from django.http import HttpRequest
from django.urls import reverse

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


class PageLink(NamedTuple):
    name: str
    url: str
    is_here: bool


def list_pages(request: HttpRequest) -> Iterator[PageLink]:
    """Yield the places that this user may see; of those that the page lies in, the innermost is marked."""
    seen = [(name, reverse(view)) for name, view, right in PLACES if not right or request.user.has_perm(right)]
    here = max((url for _, url in seen if request.path.startswith(url)), key=len, default="")
    for name, url in seen:
        yield PageLink(name, url, url == here and (url != seen[0][1] or request.path == url))
