"""One job a key: a client that did not hear the answer asks again with the same Idempotency-Key.

The unique constraint on the row decides between two requests at once. A key lives as long as its row.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from typing import Any, TypeVar

import orjson
from django.contrib.auth import get_user_model
from django.db import IntegrityError

from inference import budget
from inference.errors import IdempotencyMismatch, UnknownOwner
from inference.models import Bulk, Job
from inference.store import connections

Row = TypeVar("Row", Job, Bulk)

PATIENCE_S = 2.5
_guard = threading.Lock()
_turns: dict[str, tuple[threading.Lock, int]] = {}  # by key: who stores, and how many hold or want it


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


@contextlib.contextmanager
def turn(row: Row) -> Iterator[Row | None]:
    """Requests of one key are stored one after the other in this process, so that together they want room for one row:
    the row that another has stored while this one waited. Who has waited long goes on without a turn."""
    if (key := row.idempotency_key) is None:
        yield None
        return
    with _guard:
        lock, waiting = _turns.get(key, (threading.Lock(), 0))
        _turns[key] = lock, waiting + 1
    is_first = has_turn = lock.acquire(blocking=False)
    try:
        if not is_first:
            connections.give_back()
            with budget.spent(PATIENCE_S) as patience_s:
                has_turn = lock.acquire(timeout=patience_s)
        yield None if is_first else known(row)
    finally:
        if has_turn:
            lock.release()
        with _guard:
            lock, waiting = _turns.pop(key)
            if waiting > 1:
                _turns[key] = lock, waiting - 1


def explain(row: Row, error: IntegrityError) -> Row:
    """Why the row was refused: the row that another request with its key stored a moment ago is returned. Raises
    `UnknownOwner`, or `error`."""
    if stored := known(row):
        return stored
    if row.owner_id and not get_user_model()._default_manager.filter(pk=row.owner_id).exists():
        raise UnknownOwner("Who submits is no user any more.") from error
    raise error
