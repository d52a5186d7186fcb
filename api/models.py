"""API keys, of which a digest is stored. The key itself is shown once, when it is made."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from inference import clock

PREFIX = "inf_"
SHOWN = 12  # characters of the key that are stored to tell keys apart


def digest_key(key: str) -> str:
    """Return the SHA-256 of a key. It is enough: a key's 256 random bits cannot be guessed, however fast the hash."""
    return hashlib.sha256(key.encode()).hexdigest()


class ApiKeyManager(models.Manager["ApiKey"]):
    def issue_key(self, **fields: Any) -> tuple[ApiKey, str]:
        """Create a key. Return its row, and the key itself, which cannot be read again."""
        key = PREFIX + secrets.token_urlsafe(32)
        return self.create(digest=digest_key(key), start=key[:SHOWN], **fields), key


class ApiKey(models.Model):
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=100, blank=True, help_text="The purpose of the key.")
    start = models.CharField(max_length=SHOWN, editable=False, help_text="The first characters of the key.")
    digest = models.CharField(max_length=64, unique=True, editable=False)
    created_at = models.DateTimeField(default=clock.moment, editable=False)
    expires_at = models.DateTimeField(
        null=True, blank=True, default=None, help_text="If empty, the key does not expire."
    )
    revoked_at = models.DateTimeField(null=True, blank=True, default=None, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, default=None, editable=False)
    requests_per_minute = models.PositiveIntegerField(
        null=True, blank=True, help_text="The limit of this key. If empty, API_KEY_RATE applies."
    )
    max_queued = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Jobs of the owner that may wait at once. If empty, API_KEY_MAX_QUEUED applies.",
    )
    may_use_high = models.BooleanField(
        "may use high priority", default=True, db_default=True, help_text="Requests with this key may ask for it."
    )

    objects = ApiKeyManager()

    class Meta:
        verbose_name = "API key"
        ordering = ["-created_at"]
        indexes = [models.Index(fields=["start"], name="key_by_start")]

    def __str__(self) -> str:
        return f"{self.start}… {self.name}".strip()

    @staticmethod
    def make_validity_condition() -> Q:
        """Return the condition for keys that are accepted now."""
        unexpired = Q(expires_at=None) | Q(expires_at__gt=Now())
        return unexpired & Q(revoked_at=None, owner__is_active=True)

    def revoke(self) -> None:
        """Revoke the key, at once in this process and within `auth.REMEMBERED_S` in others. It stays revoked."""
        if self.revoked_at is None:
            self.revoked_at = clock.now()
            self.save(update_fields=["revoked_at"])


class KeyUse(models.Model):
    """The number of requests that came with a key within an hour."""

    key = models.ForeignKey(ApiKey, on_delete=models.CASCADE, related_name="uses", db_index=False)
    hour = models.DateTimeField(db_index=True)
    requests = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["key", "hour"], name="key_use_of_an_hour")]

    def __str__(self) -> str:
        return f"{self.key_id} {self.hour:%Y-%m-%d %H}:00"
