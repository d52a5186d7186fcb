"""The admin pages of clients' files and of the answers of their batches, which can be downloaded there."""

from __future__ import annotations

import logging
from typing import Any, TypeVar
from uuid import UUID

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import FileResponse, Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from api.models import FileState, StoredFile
from inference.admin.filters import OwnerFilter
from inference.admin.read_only_admin import ReadOnlyAdmin
from inference.admin.rendering import display
from inference.store import connections
from inference.telemetry.control_characters import escape_line
from inference.values.uuid_parsing import parse_uuid

M = TypeVar("M", bound=Model)

logger = logging.getLogger(__name__)


def find_by_public_id(rows: QuerySet[M], term: str, prefix: str) -> QuerySet[M]:
    """Return the row whose id was searched, with or without the prefix of public ids; all rows for an empty term."""
    return rows.filter(pk=parse_uuid(term.strip().removeprefix(prefix))) if term.strip() else rows


def render_file_link(file: StoredFile) -> SafeString | str:
    if file.state != FileState.STORED:
        return display.NONE
    url = reverse("admin:api_storedfile_download", args=[file.pk])
    return format_html('<a href="{}">{}</a>, {}', url, display.escape_text(file.name), display.format_size(file.size))


@admin.register(StoredFile)
class StoredFileAdmin(ReadOnlyAdmin):
    about = "A file has the requests of a file batch, from POST /v1/files, or their answers."
    list_display = ("shown_name", "owner_name", "purpose", "size_shown", "created", "expires")
    list_filter = ("purpose", OwnerFilter)
    list_select_related = ("owner",)
    list_per_page = list_max_show_all = 50
    search_fields = ("id",)  # shows the box; get_search_results does the work
    search_help_text = "Enter the id of a file in full."
    fields = (
        "shown_id", "shown_name", "owner_name", "purpose", "size_shown", "created_in_full", "expires_in_full",
        "content",
    )  # fmt: skip

    shown_id = display.make_column("id", "public_id")
    shown_name = display.make_column("name", "name", display.escape_text)
    owner_name = display.make_column("owner", "owner", lambda owner: display.escape_text(str(owner)))
    size_shown = display.make_column("size", "size", display.format_size)
    created = display.make_column("created", "created_at", display.render_relative_time)
    created_in_full = display.make_column("created", "created_at", display.format_moment)
    expires = display.make_column("expires", "expires_at", display.render_relative_time)
    expires_in_full = display.make_column("expires", "expires_at", display.format_moment)

    @admin.display(description="download")
    def content(self, file: StoredFile) -> SafeString | str:
        return render_file_link(file)

    def get_queryset(self, request: HttpRequest) -> QuerySet[StoredFile]:
        """Return the files that are complete, as the API does."""
        files: QuerySet[StoredFile] = super().get_queryset(request)
        return files.filter(state=FileState.STORED)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[StoredFile], search_term: str
    ) -> tuple[QuerySet[StoredFile], bool]:
        return find_by_public_id(queryset, search_term, "file-"), False

    def make_page_context(self, request: HttpRequest, row: StoredFile) -> dict[str, Any]:
        return {"title": "File", "subtitle": ""}  # the fields have the name and the id

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.download)
        return [path("<uuid:pk>/download/", view, name="api_storedfile_download"), *super().get_urls()]

    def download(self, request: HttpRequest, pk: UUID) -> HttpResponseBase:
        if not self.has_view_permission(request):
            raise PermissionDenied
        file = get_object_or_404(self.get_queryset(request), pk=pk)
        try:
            content = StoredFile.get_storage().open(file.stored_as, "rb")
        except FileNotFoundError:
            raise Http404(f"The content of {file.public_id} is not in the storage any more.") from None
        logger.info("user=%s downloads %s", request.user.pk, file.public_id)
        connections.release_connection()  # the client may read slowly
        return FileResponse(
            content,
            as_attachment=True,
            filename=escape_line(file.name),
            content_type="application/octet-stream",
            headers={"Content-Length": file.size},
        )
