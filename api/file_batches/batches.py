"""New batches, and the end of those that are not wanted any more. `manage.py run_batches` does the rest."""

from __future__ import annotations

import datetime
from typing import Any

from django.db import IntegrityError, transaction

from api import request_id
from api.auth import Principal, require_cancel_or_retry
from api.errors.problems import ApiError
from api.file_batches.files import get_visible_file, lock_file
from api.models import UNFINISHED, BatchStatus, FileBatch, FilePurpose
from api.requests.file_batches import BatchRequest, read_public_id
from inference import clock, row_locks
from inference.models import Bulk
from inference.submission import idempotency

MOST_UNFINISHED = 100  # batches of one owner
KEPT = datetime.timedelta(days=90)  # a batch that has ended, with its counts


def create_batch(principal: Principal, wanted: BatchRequest, *, key: str | None) -> FileBatch:
    """Store a batch, or return the one that was stored before with this idempotency key.

    Raises `ApiError` if the file is no input, if the owner has too many batches, or if the batch that was stored before
    was removed, and `IdempotencyMismatch`.
    """
    owner, now = principal.user, clock.get_database_time()
    request = request_id.get_request_id()
    bulk = Bulk(model="", total=0, owner=owner, request_id=request, is_open=True)  # no bulk of a client's
    bulk.idempotency_key = idempotency.scope_key(owner, key)
    bulk.idempotency_digest = idempotency.digest_body("batch", wanted.body) if key else ""
    batch = FileBatch(
        id=bulk.id,
        owner=owner,
        key_start=principal.key_start,
        request_id=bulk.request_id,
        endpoint=wanted.endpoint,
        completion_window=wanted.completion_window,
        metadata=wanted.metadata,
        output_expires_after_s=wanted.output_expires_after_s,
        created_at=now,
        expires_at=now + datetime.timedelta(seconds=wanted.window_s),
    )

    def store() -> Bulk:
        batch.input_file = get_visible_file(principal, wanted.input_file_id)
        if batch.input_file.purpose != FilePurpose.BATCH:
            name, purpose = batch.input_file.public_id, batch.input_file.purpose
            raise ApiError(f"input_file_id: {name} has the purpose {purpose}, not batch.", field="input_file_id")
        try:
            with transaction.atomic():
                _refuse_too_many(owner)
                lock_file(batch.input_file)
                bulk.save(force_insert=True)
                batch.save(force_insert=True)
        except IntegrityError as error:
            return idempotency.resolve_conflict(bulk, error)
        return bulk

    if (stored := FileBatch.objects.filter(pk=idempotency.store_once(bulk, store).pk).first()) is None:
        raise ApiError("The batch of this Idempotency-Key was removed; send another key.", "batch_not_found")
    return stored


def _refuse_too_many(owner: Any) -> None:
    """Raise `ApiError` if the owner has as many unfinished batches as may be. The owner is locked meanwhile."""
    if owner is not None:
        row_locks.make_locking_query(type(owner)._default_manager.filter(pk=owner.pk)).exists()
    if FileBatch.objects.filter(owner=owner, status__in=UNFINISHED).count() >= MOST_UNFINISHED:
        raise ApiError(
            f"{MOST_UNFINISHED} of your batches are not finished, as many as may be. Try again later.",
            "too_many_queued",
            retry_after_s=60,
        )


def cancel_batch(batch: FileBatch) -> bool:
    """Have a batch cancelled; return False if it has ended, or is about to. Its answers so far are kept."""
    running = FileBatch.objects.filter(pk=batch.pk, status__in=(BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS))
    return bool(running.update(status=BatchStatus.CANCELLING, cancelling_at=clock.get_database_time()))


def cancel_own_batch(principal: Principal, batch_id: str) -> FileBatch:
    """Have a batch cancelled, and return it as it is then.

    Raises the errors of `get_visible_batch`, and `ApiError` if the principal may only look at the batch.
    """
    batch = get_visible_batch(principal, batch_id)
    require_cancel_or_retry(principal, batch)
    cancel_batch(batch)
    batch.refresh_from_db()
    return batch


def get_visible_batch(principal: Principal, batch_id: str) -> FileBatch:
    """Return the batch with this id, if the principal may see it.

    Raises `ApiError`, the same for a batch of another owner as for none.
    """
    key = read_public_id(batch_id, "batch_")
    batch = key and FileBatch.objects.filter(pk=key).first()
    if not batch or not principal.may_see(batch):
        raise ApiError(f"No batch found with id '{batch_id[:100]}'.", "batch_not_found")
    return batch


def remove_old_batches() -> None:
    """Remove batches that ended long ago. Their bulks may stay, whose idempotency keys are free again then."""
    old = FileBatch.objects.filter(ended_at__lt=clock.get_database_time() - KEPT)
    row_locks.update_rows(
        Bulk.objects.filter(pk__in=old.values("pk"), idempotency_key__isnull=False), idempotency_key=None
    )
    row_locks.delete_rows(old)
