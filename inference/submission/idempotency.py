"""One job a key: a client that did not hear the answer asks again with the same Idempotency-Key.

The unique constraint on the row decides between two requests at once. A key lives as long as its row.
"""

from __future__ import annotations

import copy
import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

import orjson
from django.contrib.auth import get_user_model
from django.db import IntegrityError

from inference.errors import IdempotencyMismatch, StoreUnavailable, UnknownOwner
from inference.models import Bulk, Job
from inference.waiting.compute_slots import lending

Row = TypeVar("Row", Job, Bulk)
Key = tuple[type[Job | Bulk], str]

PATIENCE_S = 5.0  # an answer must be given within 6 s
_guard = threading.Lock()
_storing: dict[Key, Future[Any]] = {}  # what a request of this process stores now


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
    return stored and _matching(row, stored)


def _matching(row: Row, stored: Row) -> Row:
    if stored.idempotency_digest != row.idempotency_digest:
        raise IdempotencyMismatch(
            "This Idempotency-Key was used with another body. Use a new key for every new request.",
        )
    return stored


def once(row: Row, store: Callable[[], Row]) -> Row:
    """The row with this key: the stored one, or what `store` returns, which one request of this process does at a time.
    The others wait, and get its row too. Raises `IdempotencyMismatch`, and `StoreUnavailable` for who waits in vain."""
    if row.idempotency_key is None:
        return store()
    key = type(row), row.idempotency_key
    while True:
        with _guard:
            storing: Future[Row] | None = _storing.get(key)  # looked at once: its request may end meanwhile
            if mine := storing is None:
                storing = _storing[key] = Future()
        if mine:
            return _settle(key, storing, lambda: known(row) or store())
        try:
            return _matching(row, copy.copy(_wait_for(storing)))
        except CancelledError:
            continue


def _settle(key: Key, storing: Future[Row], store: Callable[[], Row]) -> Row:
    """Why it fails is its own: one of those who wait tries next."""
    try:
        stored = store()
    except BaseException:
        del _storing[key]
        storing.cancel()
        raise
    del _storing[key]
    storing.set_result(copy.copy(stored))  # who streams it lets its inputs go
    return stored


def _wait_for(storing: Future[Row]) -> Row:
    try:
        with lending(PATIENCE_S) as patience_s:
            return storing.result(patience_s)
    except TimeoutError:
        raise StoreUnavailable(
            "Another request with this Idempotency-Key was not answered yet; nothing was stored by this one. Try again"
            " later.",
            retry_after_s=1,
        ) from None


def explain(row: Row, error: IntegrityError) -> Row:
    """Why the row was refused: the row that another request with its key stored a moment ago is returned. Raises
    `UnknownOwner`, or `error`."""
    if stored := known(row):
        return stored
    if row.owner_id and not get_user_model()._default_manager.filter(pk=row.owner_id).exists():
        raise UnknownOwner("The user who submits no longer exists.") from error
    raise error
