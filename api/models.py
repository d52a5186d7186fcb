"""The rows of the API: keys, files that clients store, and the batches of requests that files hold.

Of a key a digest is stored. The key itself is shown once, when it is made.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

from django.conf import settings
from django.core.files.storage import Storage, storages
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from inference import clock
from inference.fields.ids import make_row_id
from inference.fields.json_field import JSONField
from inference.models import ensure_former_user

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
    created_at = models.DateTimeField(default=clock.estimate_now, editable=False)
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
            self.revoked_at = clock.get_database_time()
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


class FilePurpose(models.TextChoices):
    BATCH = "batch"
    BATCH_OUTPUT = "batch_output"


class FileState(models.TextChoices):
    RECEIVING = "receiving"  # its row is there before its content: what an upload leaves behind is found by it
    STORED = "stored"
    DELETED = "deleted"  # nobody sees it any more, and its content is being removed


class StoredFile(models.Model):
    """A file of a client, or the file of the answers of a batch. Its content is in the storage `files`."""

    id = models.UUIDField(primary_key=True, default=make_row_id, editable=False)
    owner = models.ForeignKey(  # file_by_owner is its index
        settings.AUTH_USER_MODEL, null=True, default=None, on_delete=models.SET(ensure_former_user), db_index=False
    )
    purpose = models.CharField(max_length=20, choices=FilePurpose)
    state = models.CharField(max_length=10, choices=FileState, default=FileState.RECEIVING)
    name = models.CharField(max_length=255, help_text="The name that the client gave the file.")
    stored_as = models.CharField(max_length=200, help_text="The name of its content in the storage.")
    size = models.PositiveBigIntegerField("bytes", default=0)
    created_at = models.DateTimeField(default=clock.estimate_now)
    expires_at = models.DateTimeField(null=True, default=None, help_text="The file is removed then.")

    class Meta:
        verbose_name = "file"
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["owner", "-id"], name="file_by_owner"),
            models.Index(fields=["state", "id"], name="file_unfinished", condition=~Q(state="stored")),
            models.Index(fields=["expires_at"], name="file_expiring", condition=Q(expires_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.public_id}"

    @property
    def public_id(self) -> str:
        return f"file-{self.id.hex}"

    @staticmethod
    def get_storage() -> Storage:
        return storages["files"]


class BatchStatus(models.TextChoices):
    """The status of a file batch, in OpenAI's words.

    The changes are: validating → failed | in_progress → finalizing → completed | expired; validating | in_progress →
    cancelling → cancelled.
    """

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


UNFINISHED = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.CANCELLING)


class FileBatch(models.Model):
    """A file whose lines are requests, each of which is a job.

    The bulk with the same id has the jobs. The index of a job in the bulk is the index of its line. `lines_read` and
    `bytes_read` say how much of the file has become jobs. They change in the transaction that stores these jobs, so
    that each line is one job whatever ends the process.
    """

    id = models.UUIDField(primary_key=True, default=make_row_id, editable=False)
    owner = models.ForeignKey(  # file_batch_by_owner is its index
        settings.AUTH_USER_MODEL, null=True, default=None, on_delete=models.SET(ensure_former_user), db_index=False
    )
    key_start = models.CharField(max_length=12, null=True, default=None, editable=False)
    request_id = models.CharField(max_length=128, blank=True, default="")
    endpoint = models.CharField(max_length=60)
    model = models.CharField(max_length=100, blank=True, default="", help_text="The model of its first line.")
    input_file = models.ForeignKey(StoredFile, null=True, on_delete=models.SET_NULL, related_name="+", db_index=False)
    output_file = models.ForeignKey(StoredFile, null=True, on_delete=models.SET_NULL, related_name="+", db_index=False)
    error_file = models.ForeignKey(StoredFile, null=True, on_delete=models.SET_NULL, related_name="+", db_index=False)
    completion_window = models.CharField(max_length=8)
    output_expires_after_s = models.PositiveIntegerField(null=True, default=None)
    metadata = JSONField(null=True, default=None)
    status = models.CharField(max_length=12, choices=BatchStatus, default=BatchStatus.VALIDATING)
    errors = JSONField(null=True, default=None, help_text="Why the file was refused: code, message, param and line.")
    total = models.PositiveIntegerField("lines", default=0)
    lines_read = models.PositiveIntegerField(default=0, help_text="Lines that have become jobs.")
    bytes_read = models.PositiveBigIntegerField(default=0)
    model_options = JSONField(
        null=True, default=None, help_text="By model, the options of its entry that the answers depend on."
    )
    completed = models.PositiveIntegerField(default=0, help_text="Lines with an answer, once the batch has ended.")
    failed = models.PositiveIntegerField(default=0, help_text="Lines that failed, once the batch has ended.")
    usage = JSONField(null=True, default=None)
    created_at = models.DateTimeField(default=clock.estimate_now)
    expires_at = models.DateTimeField()
    in_progress_at = models.DateTimeField(null=True, default=None)
    finalizing_at = models.DateTimeField(null=True, default=None)
    cancelling_at = models.DateTimeField(null=True, default=None)
    ended_at = models.DateTimeField(null=True, default=None)
    lease_until = models.DateTimeField(
        null=True, default=None, help_text="The end of the lease of the process that handles the batch."
    )
    lease_by = models.UUIDField(null=True, default=None, help_text="The process that has the lease.")

    class Meta:
        verbose_name, verbose_name_plural = "file batch", "file batches"
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["owner", "-id"], name="file_batch_by_owner"),
            models.Index(fields=["id"], name="file_batch_unfinished", condition=Q(status__in=[*UNFINISHED])),
        ]

    def __str__(self) -> str:
        return f"{self.endpoint} {self.public_id}"

    @property
    def public_id(self) -> str:
        return f"batch_{self.id.hex}"

    @property
    def is_finished(self) -> bool:
        return self.status not in UNFINISHED
