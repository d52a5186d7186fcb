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
from django.db.models import Q, QuerySet, Sum
from django.db.models.functions import Now

from api.errors.problems import ApiError
from api.models import UNFINISHED, FileBatch, FilePurpose, FileState, StoredFile
from api.requests.file_form import NO_ROOM
from inference import clock
from inference.errors import StoreUnavailable
from inference.fields.ids import first_id_at

logger = logging.getLogger(__name__)

KEPT = datetime.timedelta(days=30)  # a batch's files, unless the client says for how long
UPLOAD = datetime.timedelta(days=1)  # an upload that is older and not complete has ended
REMOVED_AT_ONCE = 100


def store_file(
    content: File[bytes], *, owner: Any, name: str, size: int, purpose: FilePurpose, expires_in_s: int | None = None
) -> StoredFile:
    """Store a file of `size` bytes.

    Raises `ApiError` if the owner's files take too much room, and `StoreUnavailable` if the storage does not take it.
    """
    refuse_too_much(owner, size)
    row = begin_file(owner=owner, name=name, purpose=purpose, expires_in_s=expires_in_s, size=size)
    try:
        write_content(row, content, size)
    except OSError as error:  # what is there of it is removed with other uploads that were not complete
        raise StoreUnavailable(NO_ROOM, retry_after_s=60) from error
    StoredFile.objects.filter(pk=row.pk).update(state=FileState.STORED)
    row.state = FileState.STORED
    return row


def begin_file(
    *, owner: Any, name: str, purpose: FilePurpose, expires_in_s: int | None = None, size: int = 0
) -> StoredFile:
    """Make the row of a file whose content is not there yet. Nobody sees it before its state is `STORED`."""
    kept = KEPT if expires_in_s is None else datetime.timedelta(seconds=expires_in_s)
    row = StoredFile(owner=owner, name=name[:255], purpose=purpose, size=size, expires_at=clock.now() + kept)
    row.stored_as = row.id.hex
    row.save(force_insert=True)
    return row


def write_content(row: StoredFile, content: File[bytes], size: int) -> None:
    """Write the content of a file to the storage, and note its size."""
    stored_as = StoredFile.storage().save(row.stored_as, content)
    StoredFile.objects.filter(pk=row.pk).update(stored_as=stored_as, size=size)
    row.stored_as, row.size = stored_as, size


def refuse_too_much(owner: Any, size: int) -> None:
    """Raise `ApiError` if a file of `size` bytes is too much beside the other files of its owner."""
    most = settings.API_KEY_MAX_FILE_BYTES
    if owner is None or not most:
        return
    taken = StoredFile.objects.filter(owner=owner).aggregate(all=Sum("size"))["all"] or 0
    if taken + size > most:
        raise ApiError(
            f"Your files take {taken} bytes, and may take {most}. Delete some: DELETE /v1/files/ID.", "too_many_files"
        )


def delete_file(row: StoredFile) -> None:
    """Delete a file. Raises `ApiError` if a batch still reads it."""
    reader = FileBatch.objects.filter(input_file=row, status__in=UNFINISHED).first()
    if reader is not None:
        raise ApiError(
            f"{reader.public_id} still reads this file. Cancel that batch, or wait for its end.", "file_in_use"
        )
    StoredFile.objects.filter(pk=row.pk).update(state=FileState.DELETED)
    _remove_content(row)


def _remove_content(row: StoredFile) -> None:
    StoredFile.storage().delete(row.stored_as)
    row.delete()


def remove_old_files() -> int:
    """Remove files that have expired, were deleted, or were never complete. Returns their number."""
    rows = list(_removable().order_by("pk")[:REMOVED_AT_ONCE])
    for row in rows:
        StoredFile.objects.filter(pk=row.pk).update(state=FileState.DELETED)
        _remove_content(row)
    if rows:
        logger.info("%d files removed, which had expired or were deleted", len(rows))
    return len(rows)


def _removable() -> QuerySet[StoredFile]:
    left = Q(state=FileState.RECEIVING, pk__lt=first_id_at(clock.now() - UPLOAD))
    expired = Q(state=FileState.STORED, expires_at__lt=Now())
    read = FileBatch.objects.filter(status__in=UNFINISHED, input_file__isnull=False).values("input_file")
    return StoredFile.objects.filter(Q(state=FileState.DELETED) | left | expired).exclude(pk__in=read)


def find_file(file_id: UUID) -> StoredFile | None:
    return StoredFile.objects.filter(pk=file_id, state=FileState.STORED).first()
