"""One job a key: a client that did not hear the answer asks again with the same Idempotency-Key.

The unique constraint on the row decides between two requests at once. A key lives as long as its row.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import orjson
from django.contrib.auth import get_user_model
from django.db import IntegrityError

from inference.errors import IdempotencyMismatch, UnknownOwner
from inference.models import Bulk, Job

Row = TypeVar("Row", Job, Bulk)


def owned(owner: Any, key: str | None) -> str | None:
    """The key as it is stored: everybody has keys of their own."""
    return None if key is None else f"{owner.pk if owner else '-'}:{key}"


def digest(*body: Any) -> str:
    """Equal for equal bodies, whatever the order of their members."""
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()


def known(row: Row) -> Row | None:
    """The stored row with the same key, if there is one. Raises `IdempotencyMismatch` when it has another body."""
    if row.idempotency_key is None:
        return None
    stored = type(row)._default_manager.filter(idempotency_key=row.idempotency_key).first()
    if stored and stored.idempotency_digest != row.idempotency_digest:
        raise IdempotencyMismatch(
            "This Idempotency-Key was used with another body. Use a new key for every new request.",
        )
    return stored


def explain(row: Row, error: IntegrityError) -> Row:
    """Why the row was refused: the row that another request with its key stored a moment ago is returned. Raises
    `UnknownOwner`, or `error`."""
    if stored := known(row):
        return stored
    if row.owner_id and not get_user_model()._default_manager.filter(pk=row.owner_id).exists():
        raise UnknownOwner("Who submits is no user any more.") from error
    raise error
