"""The views of /v1/jobs/bulk: many jobs with one request."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from api import codec
from api.answers import resources
from api.auth import Principal, require_cancel_or_retry
from api.openapi import operations
from api.requests import bodies
from api.requests import bulk as bulk_body
from api.views.base import ApiView, add_etag, read_body_bytes, read_media_type
from inference.errors import BulkNotFound
from inference.models import Bulk
from inference.submission import bulk
from inference.values.uuid_parsing import parse_uuid


class BulksView(ApiView):
    query_parameters = {"POST": bulk_body.FIELDS}

    @operations.submit_bulk
    def post(self, request: HttpRequest) -> HttpResponse:
        if read_media_type(request) in bulk_body.LINE_TYPES:
            submission = bulk_body.read_bulk_from_lines(read_body_bytes(request), request.GET)
        else:
            bodies.require_json(read_media_type(request))
            bodies.refuse_unknown_query_parameters(
                request.GET, (), dict.fromkeys(bulk_body.FIELDS, "it belongs in the body.")
            )
            submission = bulk_body.read_bulk_from_document(read_body_bytes(request))
        accepted = bulk.submit(self.add_request_terms(request, submission))
        headers = {"Location": f"/v1/jobs/bulk/{accepted.bulk.id}", "Retry-After": "5"}
        return codec.make_json_response(resources.make_accepted_bulk_document(accepted), status=202, headers=headers)


class BulkView(ApiView):
    is_cancellable = True
    query_parameters = {"GET": ("wait",)}

    @operations.get_bulk
    def get(self, request: HttpRequest, bulk_id: str) -> HttpResponse:
        wait_s = bodies.read_seconds(request.GET, "wait")
        found = get_visible_bulk(self.principal, bulk_id)
        if wait_s:
            with self.take_wait_slot(wait_s) as granted_s:
                bulk.wait(found, timeout_s=granted_s)
        shown = resources.make_bulk_document(found)
        headers = None if shown["finished"] or self.kept_waiting else {"Retry-After": "1"}
        return add_etag(request, codec.make_json_response(shown, headers=headers))


class CancelBulkView(ApiView):
    @operations.cancel_bulk
    def post(self, request: HttpRequest, bulk_id: str) -> HttpResponse:
        return codec.make_json_response(resources.make_bulk_document(check_and_cancel_bulk(self.principal, bulk_id)))


def get_visible_bulk(principal: Principal, bulk_id: str) -> Bulk:
    """Return the bulk with this id, if the principal may see it.

    Raises `BulkNotFound`, the same for a bulk of another owner as for none. The lines of a file batch are no bulk of a
    client's: they are not all there until the batch has ended.
    """
    if (key := parse_uuid(bulk_id)) is None:
        raise BulkNotFound(f"There is no bulk {bulk_id[:100]!r}: ids are UUIDs.")
    found = bulk.fetch(key)
    if not principal.may_see(found):
        raise BulkNotFound(f"There is no bulk {found.id}.")
    if not found.model:
        raise BulkNotFound(f"{found.id} is a batch of a file: see /v1/batches/batch_{found.id.hex}.")
    return found


def check_and_cancel_bulk(principal: Principal, bulk_id: str) -> Bulk:
    """Cancel the jobs of a bulk that are not finished, and return the bulk.

    Raises the errors of `get_visible_bulk`, and `ApiError` if the principal may only look at the bulk.
    """
    found = get_visible_bulk(principal, bulk_id)
    require_cancel_or_retry(principal, found)
    bulk.cancel_bulk(found)
    return found
