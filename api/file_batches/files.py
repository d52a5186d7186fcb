"""The files that clients store, and those of the answers of batches.

The row of a file is there before its content, and until its content is removed. So nothing is left in the storage that
no row names, whenever a process dies.
"""

from __future__ import annotations

import datetime
import logging
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.files.base import File
from django.db import transaction
from django.db.models import Count, Q, QuerySet, Sum
from django.db.models.functions import Now

from api.auth import Principal
from api.errors.problems import ApiError
from api.models import UNFINISHED, FileBatch, FilePurpose, FileState, StoredFile
from api.requests.file_batches import read_public_id
from api.requests.file_form import NO_ROOM
from inference import clock, row_locks
from inference.errors import StoreUnavailable
from inference.fields.ids import make_first_id

logger = logging.getLogger(__name__)

KEPT = datetime.timedelta(days=30)  # a batch's files, unless the client says for how long
UPLOAD = datetime.timedelta(hours=1)  # content that is older and not complete will never be
MOST_FILES = 10_000  # of one owner
REMOVED_AT_ONCE = 100
TOO_MANY = "too_many_files"


def store_file(
    content: File[bytes], *, owner: Any, name: str, size: int, purpose: FilePurpose, expires_in_s: int | None = None
) -> StoredFile:
    """Store a file of `size` bytes.

    Raises `ApiError` if the owner's files take too much room, and `StoreUnavailable` if the storage does not take it.
    """
    refuse_file_over_limit(owner, size)
    row = begin_file(owner=owner, name=name, purpose=purpose, expires_in_s=expires_in_s, size=size)
    write_content(row, content, size)
    StoredFile.objects.filter(pk=row.pk).update(state=FileState.STORED)
    row.state = FileState.STORED
    return row


def begin_file(
    *, owner: Any, name: str, purpose: FilePurpose, expires_in_s: int | None = None, size: int = 0
) -> StoredFile:
    """Make the row of a file whose content is not there yet. Nobody sees it before its state is `STORED`."""
    kept = KEPT if expires_in_s is None else datetime.timedelta(seconds=expires_in_s)
    row = StoredFile(
        owner=owner, name=name[:255], purpose=purpose, size=size, expires_at=clock.get_database_time() + kept
    )
    row.stored_as = row.id.hex
    row.save(force_insert=True)
    return row


def write_content(row: StoredFile, content: File[bytes], size: int) -> None:
    """Write the content of a file to the storage, and note its size.

    Raises `StoreUnavailable` if the storage does not take it. Then nothing of the file is left.
    """
    try:
        stored_as = StoredFile.get_storage().save(row.stored_as, content)
    except Exception as error:  # storages of other packages have errors of their own
        logger.exception("file=%s is not stored", row.public_id)
        purge_file(row)
        raise StoreUnavailable(NO_ROOM, retry_after_s=60) from error
    StoredFile.objects.filter(pk=row.pk).update(stored_as=stored_as, size=size)
    row.stored_as, row.size = stored_as, size


def refuse_file_over_limit(owner: Any, size: int) -> None:
    """Raise `ApiError` if a file of `size` bytes is too much beside the other files of its owner."""
    most = settings.API_KEY_MAX_FILE_BYTES
    if owner is None or not most:
        return
    found = StoredFile.objects.filter(owner=owner).aggregate(all=Sum("size"), count=Count("pk"))
    if found["count"] >= MOST_FILES:
        raise ApiError(f"You have {MOST_FILES:,} files, as many as may be. Delete some: DELETE /v1/files/ID.", TOO_MANY)
    taken = found["all"] or 0
    if taken + size > most:
        raise ApiError(
            f"Your files take {taken} bytes, and may take {most}. Delete some: DELETE /v1/files/ID.", TOO_MANY
        )


def delete_file(row: StoredFile) -> None:
    """Delete a file. Raises `ApiError` if a batch still reads it."""
    with transaction.atomic():
        lock_file(row)
        reader = FileBatch.objects.filter(input_file=row, status__in=UNFINISHED).first()
        if reader is not None:
            raise ApiError(
                f"{reader.public_id} still reads this file. Cancel that batch, or wait for its end.", "file_in_use"
            )
        StoredFile.objects.filter(pk=row.pk).update(state=FileState.DELETED)
    purge_file(row)


def lock_file(row: StoredFile) -> None:
    """Lock a file within a transaction. Raises `ApiError` if it was deleted."""
    if not row_locks.make_locking_query(StoredFile.objects.filter(pk=row.pk, state=FileState.STORED)).exists():
        raise ApiError(f"No such File object: {row.public_id}", "file_not_found")


def purge_file(row: StoredFile) -> bool:
    """Remove the content of a file, then its row; return False if the storage fails, and the row stays."""
    StoredFile.objects.filter(pk=row.pk).update(state=FileState.DELETED)
    try:
        StoredFile.get_storage().delete(row.stored_as)
    except Exception:  # storages of other packages have errors of their own
        logger.exception("file=%s is not removed yet", row.public_id)
        return False
    StoredFile.objects.filter(pk=row.pk).delete()
    return True


def purge_old_files() -> int:
    """Remove files that have expired, were deleted, or were never complete. Returns their number."""
    removed = sum(map(purge_file, _select_removable_files().order_by("pk")[:REMOVED_AT_ONCE]))
    if removed:
        logger.info("%d files removed, which had expired or were deleted", removed)
    return removed


def open_content(row: StoredFile) -> File[bytes]:
    """Open the content of a file. Raises `ApiError` if it is gone, and `StoreUnavailable` if it cannot be read."""
    try:
        opened: File[bytes] = StoredFile.get_storage().open(row.stored_as, "rb")
    except FileNotFoundError:
        raise ApiError(f"The content of {row.public_id} is not in the storage any more.", "file_not_found") from None
    except Exception as error:  # storages of other packages have errors of their own
        logger.exception("file=%s cannot be read", row.public_id)
        raise StoreUnavailable("The storage of files does not answer. Try again later.", retry_after_s=60) from error
    return opened


def _select_removable_files() -> QuerySet[StoredFile]:
    left = Q(state=FileState.RECEIVING, pk__lt=make_first_id(clock.get_database_time() - UPLOAD))
    expired = Q(state=FileState.STORED) & _make_expired_condition()
    return StoredFile.objects.filter(Q(state=FileState.DELETED) | left | expired).exclude(pk__in=_select_read_files())


def _make_expired_condition() -> Q:
    """Return the condition of files whose time is over; the file of a batch that has not ended has no such time."""
    return Q(expires_at__lt=Now()) & ~Q(pk__in=_select_read_files())


def _select_read_files() -> QuerySet[FileBatch, Any]:
    return FileBatch.objects.filter(status__in=UNFINISHED, input_file__isnull=False).values("input_file")


def find_file(file_id: UUID) -> StoredFile | None:
    return StoredFile.objects.filter(pk=file_id, state=FileState.STORED).first()


def select_current_files() -> QuerySet[StoredFile]:
    """Return the files that clients see: those that are complete and have not expired."""
    return StoredFile.objects.filter(state=FileState.STORED).exclude(_make_expired_condition())


def get_visible_file(principal: Principal, file_id: str) -> StoredFile:
    """Return the file with this id, if the principal may see it.

    Raises `ApiError`, the same for a file of another owner as for none.
    """
    key = read_public_id(file_id, "file-")
    row = key and select_current_files().filter(pk=key).first()
    if not row or not principal.may_see(row):
        raise ApiError(f"No such File object: {file_id[:100]}", "file_not_found")
    return row
