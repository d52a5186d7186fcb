"""Idempotency keys: a client that did not get the answer repeats its request with the same Idempotency-Key.

There is one job for each key. The unique constraint on the row decides between two requests at the same time. A key is
kept as long as its row. What the job computes is compared, and not the form in which its answer is wanted: the same job
may be asked for as a stream, or in another dialect, and is answered so.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from django.contrib.auth import get_user_model
from django.db import IntegrityError

from inference import process_resources
from inference.errors import IdempotencyMismatch, StoreUnavailable, UnknownOwner
from inference.models import Bulk, Job
from inference.store.connections import release_connection_while_waiting

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser

Row = TypeVar("Row", Job, Bulk)
Key = tuple[type[Job | Bulk], str]

PATIENCE_S = 5.0  # an answer must be given within 6 s


def scope_key(owner: AbstractBaseUser | None, key: str | None) -> str | None:
    """Return the key as it is stored, with its owner: each owner has keys of its own."""
    return None if key is None else f"{owner.pk if owner else '-'}:{key}"


def digest_body(*body: Any) -> str:
    """Return a digest that is equal for equal bodies, whatever the order of their members."""
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()


def find_stored(row: Row) -> Row | None:
    """Return the stored row with the same key, or None.

    Raises `IdempotencyMismatch` if that row is of another request.
    """
    if row.idempotency_key is None:
        return None
    stored = type(row)._default_manager.filter(idempotency_key=row.idempotency_key).first()
    return stored and _require_same_body(row, stored)


def _require_same_body(row: Row, stored: Row) -> Row:
    if stored.idempotency_digest != row.idempotency_digest:
        raise IdempotencyMismatch(
            "This Idempotency-Key was used with another request. Use a new key for every new request.",
        )
    return stored


def store_once(row: Row, store: Callable[[], Row]) -> Row:
    """Return the stored row with the key of `row`, or the row that `store` returns.

    One request of this process at a time calls `store` for a key. The others wait, and get a copy of its row.

    Raises `IdempotencyMismatch` if the key was used with another request, and `StoreUnavailable` if the request that is
    waited for did not end in time.
    """
    if row.idempotency_key is None:
        return store()
    key = type(row), row.idempotency_key
    while True:
        own: Future[Row] = Future()
        storing: Future[Row] = process_resources.current.storing.setdefault(key, own)
        if storing is own:
            return _store_and_share(key, own, lambda: find_stored(row) or store())
        try:
            return _require_same_body(row, copy.copy(_wait_for(storing)))
        except CancelledError:
            continue


def _store_and_share(key: Key, storing: Future[Row], store: Callable[[], Row]) -> Row:
    """Return the row that `store` returns, and give a copy to the requests that wait for it.

    An error is raised in this request only: one of the waiting requests tries next.
    """
    try:
        stored = store()
    except BaseException:
        del process_resources.current.storing[key]
        storing.cancel()
        raise
    del process_resources.current.storing[key]
    storing.set_result(copy.copy(stored))  # a request that streams a job drops the inputs of its own copy
    return stored


def _wait_for(storing: Future[Row]) -> Row:
    try:
        with release_connection_while_waiting(PATIENCE_S) as patience_s:
            return storing.result(patience_s)
    except TimeoutError:
        raise StoreUnavailable(
            "Another request with this Idempotency-Key was not answered yet; nothing was stored by this one. Try again"
            " later.",
            retry_after_s=1,
        ) from None


def resolve_conflict(row: Row, error: IntegrityError) -> Row:
    """Return the row that another request with the same key stored a moment ago, after `error` refused `row`.

    If there is none, raises `UnknownOwner` if the owner was deleted, else `error`.
    """
    if stored := find_stored(row):
        return stored
    if row.owner_id and not get_user_model()._default_manager.filter(pk=row.owner_id).exists():
        raise UnknownOwner("The user who submits no longer exists.") from error
    raise error
