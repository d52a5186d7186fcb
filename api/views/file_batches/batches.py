"""The views of /v1/batches: files whose lines are requests, answered within hours and not at once."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from api import codec
from api.file_batches import results
from api.file_batches.batches import cancel_own_batch, create_batch, get_visible_batch
from api.file_batches.documents import make_batch_document, make_batch_documents, make_page
from api.file_batches.endpoints import ENDPOINTS
from api.models import FileBatch
from api.openapi import batch_operations
from api.requests import bodies
from api.requests.file_batches import load_page, read_file_batch
from api.views.base import ApiView, read_json
from api.views.file_batches.files import send_pieces


class BatchesView(ApiView):
    query_parameters = {"GET": ("limit", "after")}

    @batch_operations.list_batches
    def get(self, request: HttpRequest) -> HttpResponse:
        visible = FileBatch.objects.all()
        if not self.principal.is_staff:
            visible = visible.filter(owner=self.principal.user)
        found, has_more = load_page(request.GET, visible, "batch_")
        return codec.make_json_response(make_page(make_batch_documents(found), has_more=has_more))

    @batch_operations.create_batch
    def post(self, request: HttpRequest) -> HttpResponse:
        wanted = read_file_batch(read_json(request), ENDPOINTS)
        key = bodies.read_idempotency_key(request.META.get("HTTP_IDEMPOTENCY_KEY"))
        return codec.make_json_response(make_batch_document(create_batch(self.principal, wanted, key=key)))


class BatchView(ApiView):
    is_cancellable = True

    @batch_operations.get_batch
    def get(self, request: HttpRequest, batch_id: str) -> HttpResponse:
        row = get_visible_batch(self.principal, batch_id)
        headers = None if row.is_finished else {"Retry-After": "5"}
        return codec.make_json_response(make_batch_document(row), headers=headers)


class BatchOutputView(ApiView):
    @batch_operations.get_batch_output
    def get(self, request: HttpRequest, batch_id: str) -> HttpResponseBase:
        row = get_visible_batch(self.principal, batch_id)
        name = f"{row.public_id}_output.jsonl"
        return send_pieces(
            self.principal,
            name,
            lambda: results.open_output_source_file(row),
            lambda source: results.read_output_file(row, source),
        )


class CancelBatchView(ApiView):
    @batch_operations.cancel_batch
    def post(self, request: HttpRequest, batch_id: str) -> HttpResponse:
        """Have a batch cancelled. Its answers so far are kept; a batch that has ended stays as it is."""
        return codec.make_json_response(make_batch_document(cancel_own_batch(self.principal, batch_id)))
