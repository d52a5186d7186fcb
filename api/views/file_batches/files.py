"""The views of /v1/files: the files of requests that clients upload, and those of their answers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from django.core.files.base import File
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.http import content_disposition_header

from api import codec
from api.auth import Principal
from api.errors.problems import ApiError
from api.file_batches import files
from api.file_batches.documents import make_file_document, make_page
from api.models import FilePurpose
from api.openapi import batch_operations
from api.requests.file_batches import load_page, read_form_expiry_s
from api.requests.file_form import read_file_form
from api.server.body_limits import find_body_limit
from api.views.base import ApiView
from inference import process_resources
from inference.store import connections

DOWNLOAD_S = 3600.0  # more than zero: a slot is held for as long as the client reads
BUSY = "So many requests wait or download that there is no thread for this one. Send it again later."
FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")


class FilesView(ApiView):
    query_parameters = {"GET": ("purpose", "limit", "after", "order")}

    @batch_operations.list_files
    def get(self, request: HttpRequest) -> HttpResponse:
        visible = files.select_current_files()
        if not self.principal.is_staff:
            visible = visible.filter(owner=self.principal.user)
        if purpose := request.GET.get("purpose"):
            if purpose not in FilePurpose.values:
                raise ApiError(f"purpose must be one of {', '.join(FilePurpose.values)}.", field="purpose")
            visible = visible.filter(purpose=purpose)
        found, has_more = load_page(request.GET, visible, "file-")
        return codec.make_json_response(make_page(list(map(make_file_document, found)), has_more=has_more))

    @batch_operations.upload_file
    def post(self, request: HttpRequest) -> HttpResponse:
        form = read_file_form(request.META, limit=find_body_limit(request.META), example="purpose=batch")
        with form.file as content:
            if unknown := next((name for name in form.fields if name not in FIELDS), None):
                shown = unknown[:100]
                raise ApiError(f"{shown}: unknown field; the form has {', '.join(FIELDS)} and file.", field=shown)
            if form.fields.get("purpose") != FilePurpose.BATCH:
                raise ApiError("purpose: must be batch. Files for other purposes are not stored here.", field="purpose")
            if not content.size:
                raise ApiError("file: is empty. Send at least one line.", field="file")
            row = files.store_file(
                content,
                owner=self.principal.user,
                name=content.name or "file",
                size=content.size or 0,
                purpose=FilePurpose.BATCH,
                expires_in_s=read_form_expiry_s(form.fields),
            )
        return codec.make_json_response(make_file_document(row))


class FileView(ApiView):
    @batch_operations.get_file
    def get(self, request: HttpRequest, file_id: str) -> HttpResponse:
        return codec.make_json_response(make_file_document(files.get_visible_file(self.principal, file_id)))

    @batch_operations.delete_file
    def delete(self, request: HttpRequest, file_id: str) -> HttpResponse:
        row = files.get_visible_file(self.principal, file_id)
        if not self.principal.may_cancel_or_retry(row):
            raise ApiError("This key sees the files of others, and may not delete them.", "forbidden")
        shown = row.public_id
        files.delete_file(row)
        return codec.make_json_response({"id": shown, "object": "file", "deleted": True})


class FileContentView(ApiView):
    @batch_operations.get_file_content
    def get(self, request: HttpRequest, file_id: str) -> HttpResponseBase:
        row = files.get_visible_file(self.principal, file_id)
        return send_pieces(self.principal, row.name, lambda: files.open_content(row), File.chunks, size=row.size)


def send_pieces(
    principal: Principal,
    name: str,
    open_file: Callable[[], File[bytes]],
    read: Callable[[File[bytes]], Iterator[bytes]],
    *,
    size: int | None = None,
) -> StreamingHttpResponse:
    """Send what `read` makes of a file, in pieces, from a slot among the requests that wait.

    Raises `ApiError` if no slot is free, and the errors of `open_file`.
    """
    with contextlib.ExitStack() as held:
        if not held.enter_context(process_resources.current.wait_slots.limit_wait(principal.user_id, DOWNLOAD_S)):
            raise ApiError(BUSY, "overloaded", retry_after_s=5)
        content = held.enter_context(open_file())
        connections.release_connection()  # a client may read slowly
        sent = DownloadPieces(read(content), held.pop_all())
    headers = {"Content-Disposition": content_disposition_header(as_attachment=False, filename=name)}
    if size is not None:
        headers["Content-Length"] = str(size)
    return StreamingHttpResponse(sent, content_type="application/octet-stream", headers=headers)


class DownloadPieces:
    """The pieces of a file for a client. Their request keeps a slot until they are closed, as it holds a thread."""

    def __init__(self, pieces: Iterator[bytes], held: contextlib.ExitStack) -> None:
        self._pieces, self._held = pieces, held

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def close(self) -> None:
        self._held.close()
