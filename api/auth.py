"""The principal of a request: the owner of an API key, or an anonymous one where no key is needed."""

from __future__ import annotations

import datetime
import logging
import time
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.db.models.signals import post_delete, post_save
from django.dispatch import receiver

from api.errors.problems import ApiError
from api.key_usage import UsageCounter
from api.models import PREFIX, ApiKey, FileBatch, StoredFile, digest_key
from inference import clock, process_resources
from inference.connection_retries import is_away
from inference.models import Bulk, Job
from inference.values.priority import PATIENT, Priority

logger = logging.getLogger(__name__)

REMEMBERED_S = 5.0  # for so long a key is still accepted after another process has revoked it
REMEMBERED_KEYS = 10_000
USED_EVERY_S = 60  # precision of last_used_at

OwnedRow = Job | Bulk | StoredFile | FileBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The user for whom a request acts, and the limits of the key.

    Owners see their own jobs, and staff see all. A request without a key sees the jobs that have no owner.
    """

    user: Any = None  # the key's owner; None without a key
    key_id: int = 0
    key_start: str | None = None
    requests_per_minute: int = 0  # 0: no limit
    max_queued: int = 0  # 0: no limit
    may_use_high: bool = True

    @property
    def user_id(self) -> Any:
        return self.user.pk if self.user else None

    @property
    def is_staff(self) -> bool:
        return self.user is not None and self.user.is_staff

    def may_see(self, row: OwnedRow) -> bool:
        return self.is_staff or row.owner_id == self.user_id

    def may_cancel_or_retry(self, row: OwnedRow) -> bool:
        """Return True if it may cancel the row or run it again. Some of the staff may only look, as in the admin."""
        return row.owner_id == self.user_id or (self.user is not None and self.user.has_perm("inference.change_job"))

    @property
    def visible_jobs(self) -> QuerySet[Job]:
        """The jobs that it may see. The parts of a job are not among them."""
        jobs = Job.objects.filter(whole=None)
        return jobs if self.is_staff else jobs.filter(owner=self.user)

    def find_max_waiting_jobs(self, priority: int) -> int | None:
        """Return how many jobs of this owner may wait at that priority and above, or None for no limit."""
        if self.user is None:
            return None
        return (settings.API_KEY_MAX_LOW_QUEUED if priority >= PATIENT else self.max_queued) or None


ANONYMOUS = Principal()


def find_principal(authorization: str) -> Principal:
    """Return the principal that sent this Authorization header. Raises `ApiError`."""
    scheme, _, key = authorization.strip().partition(" ")
    if not key and scheme.startswith(PREFIX):
        scheme, key = "Bearer", scheme  # some clients send a key without a scheme
    if not settings.API_KEY_REQUIRED and not key.startswith(PREFIX):
        return ANONYMOUS  # Hugging Face's clients send a token of their own if they have one
    if not authorization:
        raise ApiError("An API key is needed: send Authorization: Bearer KEY.", "unauthorized")
    if scheme.lower() != "bearer" or not key:
        raise ApiError("The Authorization header must be: Bearer KEY.", "unauthorized")
    return keyring.find_principal(key.strip())


def make_invalid_key_error() -> ApiError:
    return ApiError("This API key is not valid: it may have been revoked, or expired.", "unauthorized")


def count_against_rate_limit(principal: Principal) -> None:
    """Count a request of a key that has a rate. Raises `ApiError` if the rate is used up."""
    if not principal.requests_per_minute:
        return
    if wait_s := process_resources.current.rates.count_against_rate(
        f"key:{principal.key_id}", principal.requests_per_minute
    ):
        raise ApiError(
            f"This key may send {principal.requests_per_minute} requests a minute. Try again in {wait_s:.1f} s.",
            "too_many_requests",
            retry_after_s=wait_s,
        )


def require_staff(principal: Principal) -> None:
    """Raise `ApiError` if the principal is not staff. Where no key is needed, every request passes."""
    if settings.API_KEY_REQUIRED and not principal.is_staff:
        raise ApiError("Only a key of a staff user may do that.", "forbidden")


def require_cancel_or_retry(principal: Principal, row: OwnedRow) -> None:
    """Raise `ApiError` if the principal, which may see the row, may neither cancel or delete it nor run it again."""
    if not principal.may_cancel_or_retry(row):
        raise ApiError("This key sees the jobs of others. It may not cancel, delete or run them again.", "forbidden")


def require_priority(principal: Principal, priority: int) -> None:
    """Raise `ApiError` if the priority is high and the principal may not use it."""
    if priority == Priority.HIGH and not principal.may_use_high:
        others = " or ".join(each.name.lower() for each in Priority if each != Priority.HIGH)
        raise ApiError(f"This key may not use the priority high. Send {others}.", "forbidden")


class KeyCache:
    """The keys that were looked up a moment ago: one query a key every few seconds, however many requests it sends."""

    def __init__(self, usage: UsageCounter) -> None:
        self._usage = usage
        self.known: dict[str, tuple[Principal, float]] = {}

    def find_principal(self, key: str) -> Principal:
        """Return the principal of a key. Raises the same `ApiError` for a wrong, a revoked and an expired key."""
        name = digest_key(key)
        principal, until = self.known.get(name, (None, 0.0))
        if principal is None or time.monotonic() > until:
            principal = self._look_up(name)
        self._usage.count_request(principal.key_id)
        return principal

    def forget_key(self, name: str = "") -> None:
        if name:
            self.known.pop(name, None)
        else:
            self.known.clear()

    def _look_up(self, name: str) -> Principal:
        row = ApiKey.objects.filter(ApiKey.make_validity_condition(), digest=name).select_related("owner").first()
        if row is None:
            self.forget_key(name)
            raise make_invalid_key_error()
        _note_use(row)
        self._usage.write_if_due()
        principal = Principal(
            user=row.owner,
            key_id=row.pk,
            key_start=row.start,
            requests_per_minute=get_limit_or_default(row.requests_per_minute, settings.API_KEY_RATE),
            max_queued=get_limit_or_default(row.max_queued, settings.API_KEY_MAX_QUEUED),
            may_use_high=row.may_use_high,
        )
        if len(self.known) >= REMEMBERED_KEYS:
            self.known.clear()
        self.known[name] = (principal, time.monotonic() + _compute_remembered_s(row))
        return principal


def get_limit_or_default(own: int | None, default: int) -> int:
    return default if own is None else own


def _compute_remembered_s(row: ApiKey) -> float:
    if row.expires_at is None:
        return REMEMBERED_S
    return min(REMEMBERED_S, (row.expires_at - clock.get_database_time()).total_seconds())


def _note_use(row: ApiKey) -> None:
    """Write when the key was used, at most every `USED_EVERY_S` seconds.

    If the database is read-only, or other writers lock it, the time is not written, and the key is accepted all the
    same.
    """
    now = clock.get_database_time()
    if row.last_used_at and abs(now - row.last_used_at) < datetime.timedelta(seconds=USED_EVERY_S):
        return
    try:
        ApiKey.objects.filter(pk=row.pk).update(last_used_at=now)
    except Exception as error:
        if not is_away(error):
            raise
        logger.warning("use of the key %s not noted: %s", row.start, error)


keyring = KeyCache(UsageCounter())


@receiver([post_save, post_delete], sender=ApiKey)
def _forget_changed_key(instance: ApiKey, **kwargs: Any) -> None:
    keyring.forget_key(instance.digest)
