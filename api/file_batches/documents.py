"""The documents of files and batches in answers, in OpenAI's form."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from api.file_batches.progress import BatchProgress, measure_progress
from api.models import BatchStatus, FileBatch, StoredFile


def make_file_document(row: StoredFile) -> dict[str, Any]:
    return {
        "id": row.public_id,
        "object": "file",
        "bytes": row.size,
        "created_at": _to_timestamp(row.created_at),
        "expires_at": _to_timestamp(row.expires_at),
        "filename": row.name,
        "purpose": row.purpose,
        "status": "processed",
        "status_details": None,
    }


def make_batch_documents(rows: Sequence[FileBatch]) -> list[dict[str, Any]]:
    """Make the documents of several batches, whose lines are counted by one query."""
    progress = measure_progress(rows)
    return [_make_batch_document(row, progress[row.id]) for row in rows]


def make_batch_document(row: FileBatch) -> dict[str, Any]:
    [document] = make_batch_documents([row])
    return document


def _make_batch_document(row: FileBatch, progress: BatchProgress) -> dict[str, Any]:
    return {
        "id": row.public_id,
        "object": "batch",
        "endpoint": row.endpoint,
        "model": row.model or None,
        "errors": {"object": "list", "data": row.errors} if row.errors else None,
        "input_file_id": _make_file_id(row.input_file_id),
        "completion_window": row.completion_window,
        "status": row.status,
        "output_file_id": _make_file_id(row.output_file_id),
        "error_file_id": _make_file_id(row.error_file_id),
        "created_at": _to_timestamp(row.created_at),
        "in_progress_at": _to_timestamp(row.in_progress_at),
        "expires_at": _to_timestamp(row.expires_at),
        "finalizing_at": _to_timestamp(row.finalizing_at),
        "completed_at": _find_end_timestamp(row, BatchStatus.COMPLETED),
        "failed_at": _find_end_timestamp(row, BatchStatus.FAILED),
        "expired_at": _find_end_timestamp(row, BatchStatus.EXPIRED),
        "cancelling_at": _to_timestamp(row.cancelling_at),
        "cancelled_at": _find_end_timestamp(row, BatchStatus.CANCELLED),
        "request_counts": {"total": row.total, "completed": progress.answered, "failed": progress.failed},
        "usage": _make_usage_document(row),
        "metadata": row.metadata,
    }


def make_page(items: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Return a page of files or batches. Clients read pages until `has_more` is false."""
    first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    return {"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": has_more}


def _make_usage_document(row: FileBatch) -> dict[str, Any]:
    read, made = (row.usage or {}).get("input_tokens", 0), (row.usage or {}).get("output_tokens", 0)
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + made,
    }


def _find_end_timestamp(row: FileBatch, status: BatchStatus) -> int | None:
    return _to_timestamp(row.ended_at) if row.status == status else None


def _to_timestamp(moment: datetime.datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())


def _make_file_id(pk: UUID | None) -> str | None:
    return None if pk is None else f"file-{pk.hex}"
