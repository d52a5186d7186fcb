"""The rows of the database.

A `Job` is the truth about one accepted request, a `Worker` is the presence of one worker process, and a `Figure` counts
what happened in some time.
"""

from __future__ import annotations

import datetime
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.hashers import make_password
from django.core.exceptions import PermissionDenied
from django.db import models
from django.db.models import Q
from django.db.models.signals import pre_delete
from django.dispatch import receiver

from inference import clock, errors
from inference.fields import worker_documents as documents
from inference.fields.ids import make_row_id
from inference.fields.indexes import PostgresqlPartialIndex
from inference.fields.json_field import JSONField
from inference.fields.typed_json_field import TypedJSONColumn, TypedJSONField
from inference.telemetry.plurals import format_count
from inference.values.priority import Priority

FORMER_USER = "former-user"
NO_TIME = datetime.timedelta()  # shown for negative times, which come of a clock that was set back


def ensure_former_user() -> Any:
    """Return the user that owns the rows of deleted users, and create it if need be.

    Without an owner these rows could be read without an API key where no key is needed.
    """
    users = get_user_model()
    user, _ = users._default_manager.get_or_create(
        **{users.USERNAME_FIELD: FORMER_USER}, defaults={"is_active": False, "password": make_password(None)}
    )
    if user.is_active:  # a real user had the name before
        user.is_active = False
        user.save(update_fields=["is_active"])
    return user


@receiver(pre_delete, sender=settings.AUTH_USER_MODEL)
def _refuse_former_user_deletion(instance: Any, **kwargs: Any) -> None:
    if instance.get_username() == FORMER_USER:
        raise PermissionDenied(f"{FORMER_USER} owns the rows of deleted users, and cannot be deleted.")


class Status(models.TextChoices):
    """The status of a job.

    The changes are: queued → running → succeeded | failed; queued | running → cancelled; queued → expired; running →
    queued only by recovery. A job that runs in parts may also become expired while it runs.
    """

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


WAITING = (Status.QUEUED, Status.RUNNING)
TERMINAL = (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.EXPIRED)


class Bulk(models.Model):
    """Many jobs that were posted together.

    `rejected` holds the inputs that were refused, as (index, code, detail).
    """

    id = models.UUIDField(primary_key=True, default=make_row_id, editable=False)
    model = models.CharField(max_length=100)
    total = models.PositiveIntegerField(help_text="Inputs that were posted, those that were refused included.")
    rejected = JSONField(default=list)
    created_at = models.DateTimeField(default=clock.estimate_now)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, default=None, on_delete=models.SET(ensure_former_user)
    )
    idempotency_key = models.CharField(max_length=300, null=True, default=None, unique=True)
    idempotency_digest = models.CharField(max_length=64, blank=True, default="")
    request_id = models.CharField(max_length=128, blank=True, default="")
    is_open = models.BooleanField(
        default=False, db_default=False, help_text="True while the finished jobs are still needed: none is removed."
    )
    worked_at = models.DateTimeField(
        null=True, default=None, help_text="When the program that works on open bulks was last seen."
    )

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["id"], name="bulk_open", condition=Q(is_open=True))]

    def __str__(self) -> str:
        return f"{self.model} {self.id}"


OPERATOR_HINT = "Its operator finds the reason by the job's id."
_MIXED = {  # by error code: the public sentence in a detail of the version before, which the raised error followed
    "engine_error": "The model failed on this input.",
    "out_of_memory": "This input does not fit in the memory of the device.",
    "bad_output": "The engine's answer could not be read.",
    "invalid_input": errors.UNREADABLE,
}


class Job(models.Model):
    id = models.UUIDField(primary_key=True, default=make_row_id, editable=False)
    model = models.CharField(max_length=100)
    inputs = JSONField(help_text="One input, or a list of several, as the client sent it.")
    parameters = JSONField(default=dict)
    prompt_length = models.IntegerField(
        null=True, default=None, help_text="Characters of the prompt before the generated text in the output."
    )
    size = models.PositiveIntegerField(default=1, help_text="Items in the inputs.")
    length = models.PositiveIntegerField(default=1, help_text="Estimated tokens of the longest item.")
    priority = models.PositiveSmallIntegerField(choices=Priority, default=Priority.NORMAL)
    status = models.CharField(max_length=10, choices=Status, default=Status.QUEUED)
    output = JSONField(null=True, default=None)
    error_code = models.CharField(max_length=40, blank=True, default="")
    error_detail = models.TextField(blank=True, default="")
    error_raised = models.TextField(
        null=True, default=None, help_text="The error that a model's code or a library raised, for operators."
    )
    error_trace = models.TextField(null=True, default=None, help_text="The traceback of that error, for operators.")

    batch = models.UUIDField(
        null=True, default=None, help_text="The batch that claimed the job. No other batch may record its outcome."
    )
    batch_size = models.PositiveIntegerField(null=True, default=None, help_text="Items in the whole batch.")
    attempts = models.PositiveIntegerField(default=0, help_text="How often a replica claimed the job.")
    recoveries = models.PositiveIntegerField(default=0, help_text="How often the process that ran the job was lost.")
    worker = models.UUIDField(null=True, default=None)
    device = models.CharField(max_length=20, blank=True, default="")

    created_at = models.DateTimeField(default=clock.estimate_now)
    published_at = models.DateTimeField(null=True, default=None, help_text="When its message was last sent.")
    started_at = models.DateTimeField(null=True, default=None)
    lease_until = models.DateTimeField(
        null=True, default=None, help_text="The end of the lease: a running job may be claimed again after it."
    )
    finished_at = models.DateTimeField(null=True, default=None)
    expires_at = models.DateTimeField(null=True, default=None)

    owner = models.ForeignKey(  # job_by_owner is its index
        settings.AUTH_USER_MODEL, null=True, default=None, on_delete=models.SET(ensure_former_user), db_index=False
    )
    key_start = models.CharField(
        max_length=12,
        null=True,
        default=None,
        editable=False,
        help_text="The first characters of the API key of the request. They stay when the key is deleted.",
    )
    idempotency_key = models.CharField(
        max_length=300, null=True, default=None, help_text="OWNER:KEY. Each has one job."
    )
    idempotency_digest = models.CharField(max_length=64, blank=True, default="", help_text="A hash of the request.")
    request_id = models.CharField(max_length=128, blank=True, default="")
    route = models.CharField(
        max_length=60,
        null=True,
        default=None,
        editable=False,
        help_text="The path of the API that received the request.",
    )
    traceparent = models.CharField(
        max_length=55,
        null=True,
        default=None,
        editable=False,
        help_text="The traceparent of the request, if traces are on.",
    )
    reader = models.UUIDField(
        null=True,
        default=None,
        editable=False,
        help_text="The last stream whose client wants the job cancelled when it disconnects.",
    )
    bulk = models.ForeignKey(Bulk, null=True, default=None, on_delete=models.CASCADE, db_index=False)
    bulk_index = models.PositiveIntegerField(null=True, default=None, help_text="The index of the input in the bulk.")

    # A list of more inputs than a batch holds is one job, the whole. Its parts hold the inputs and outputs, and run.
    parts = models.IntegerField(null=True, default=None, help_text="The number of its parts, if it is a whole.")
    whole = models.UUIDField(null=True, default=None, help_text="The whole that it belongs to, if it is a part.")
    place = models.IntegerField(
        null=True, default=None, help_text="The index of its first input in the list, if it is a part."
    )
    output_size = models.IntegerField(
        null=True, default=None, help_text="The count of numbers in its output, if it is a part."
    )

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["model", "priority", "id"], name="job_queued", condition=Q(status=Status.QUEUED)),
            models.Index(fields=["status", "expires_at"], name="job_expiring", condition=Q(expires_at__isnull=False)),
            models.Index(fields=["status", "-id"], name="job_by_status"),
            PostgresqlPartialIndex(fields=["model", "-id"], name="job_of_model", condition=Q(whole__isnull=True)),
            models.Index(fields=["owner", "-id"], name="job_by_owner"),
            models.Index(
                fields=["owner", "priority", "model", "id"],
                name="job_queued_by_owners",
                condition=Q(status=Status.QUEUED),
            ),
            models.Index(fields=["key_start", "-id"], name="job_by_key", condition=Q(key_start__isnull=False)),
            models.Index(fields=["bulk", "status"], name="job_by_bulk", condition=Q(bulk__isnull=False)),
            models.Index(fields=["request_id"], name="job_by_request"),
            models.Index(fields=["error_code", "-id"], name="job_by_error", condition=Q(error_code__gt="")),
            models.Index(fields=["worker", "-id"], name="job_by_worker", condition=Q(worker__isnull=False)),
            models.Index(fields=["priority", "-id"], name="job_by_priority", condition=~Q(priority=Priority.NORMAL)),
            models.Index(fields=["batch"], name="job_by_batch", condition=Q(batch__isnull=False)),
            models.Index(fields=["whole", "status", "place"], name="job_by_whole", condition=Q(whole__isnull=False)),
            models.Index(fields=["status"], name="job_in_parts", condition=Q(parts__isnull=False)),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["idempotency_key"],
                name="job_idempotency_key",
                condition=Q(idempotency_key__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model} {self.id}"

    @property
    def public_detail(self) -> str:
        """The detail of the error that clients may read."""
        if settings.ENGINE_ERRORS == "full":
            return self.full_detail
        if self.error_raised is None:
            return self._public_part
        return f"{self.error_detail} {OPERATOR_HINT}" if self.error_raised else self.error_detail

    @property
    def full_detail(self) -> str:
        """The whole detail of the error, for operators."""
        return f"{self.error_detail} {self.error_raised}" if self.error_raised else self.error_detail

    @property
    def _public_part(self) -> str:
        """The public part of the detail of a job that a worker of an earlier version has ended."""
        ours = _MIXED.get(self.error_code, "")
        if self.error_code in (errors.EngineError.code, errors.OutOfMemory.code):
            return f"{ours} {OPERATOR_HINT}"
        before, found, _ = self.error_detail.partition(ours) if ours else (self.error_detail, "", "")
        return before + found

    @property
    def is_finished(self) -> bool:
        return self.status in TERMINAL

    @property
    def queue_wait(self) -> datetime.timedelta | None:
        return max(NO_TIME, self.started_at - self.created_at) if self.started_at else None

    @property
    def run_time(self) -> datetime.timedelta | None:
        return max(NO_TIME, self.finished_at - self.started_at) if self.started_at and self.finished_at else None


class WorkerState(models.TextChoices):
    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    DRAINING = "draining"  # takes nothing new, as an operator wants, and ends what it has begun
    DRAINED = "drained"
    STOPPING = "stopping"
    STOPPED = "stopped"
    GONE = "gone"


ENDED = (WorkerState.STOPPED, WorkerState.GONE)


class Worker(models.Model):
    """A worker, with one row for each of its starts.

    `heartbeat_at` is written anew every `WORKER_HEARTBEAT_S` seconds.
    """

    id = models.UUIDField(primary_key=True, default=make_row_id, editable=False)
    name = models.CharField(max_length=255, help_text="Celery's node name.")
    pid = models.PositiveIntegerField()
    state = models.CharField(max_length=10, choices=WorkerState, default=WorkerState.STARTING)
    model_names: models.Field[list[str], list[str]] = models.JSONField(default=list, help_text="The models it serves.")
    devices: models.Field[list[str], list[str]] = models.JSONField(default=list)
    replicas: TypedJSONColumn[dict[str, documents.ReplicaSnapshot]] = TypedJSONField(
        documents.make_documents_reader(documents.ReplicaSnapshot),
        help_text='By index: {"pid", "device", "models": {name: "ready" or why not}}.',
    )
    catalog: TypedJSONColumn[documents.CatalogSnapshot] = TypedJSONField(
        documents.CatalogSnapshot.read,
        null=True,
        help_text="The catalog that the worker has read: its digest, its problem if it is refused, and each model.",
    )
    error = models.TextField(blank=True, default="", help_text="Which models it cannot serve, and why.")
    connected = models.BooleanField(
        default=True, db_default=True, help_text="True while the worker is connected to the broker."
    )
    replicas_total = models.PositiveIntegerField(default=0)
    replicas_ready = models.PositiveIntegerField(default=0)
    replicas_busy = models.PositiveIntegerField(default=0)
    held = models.PositiveIntegerField("backlog", default=0, help_text="Jobs that the worker holds and has not begun.")
    finished = models.PositiveBigIntegerField(default=0, help_text="Jobs finished since its start.")
    jobs_per_s = models.FloatField(default=0.0, help_text="Jobs that ended per second, over the last ten seconds.")
    speeds: TypedJSONColumn[dict[str, float]] = TypedJSONField(
        help_text="By model: measured items per second while it computes."
    )
    reached: TypedJSONColumn[dict[str, dict[int, float]]] = TypedJSONField(
        documents.read_newest_creation_times,
        help_text="By model and priority: when the newest of the started jobs was created.",
    )
    generation: TypedJSONColumn[dict[str, documents.GenerationSnapshot]] = TypedJSONField(
        documents.make_documents_reader(documents.GenerationSnapshot),
        null=True,
        help_text="By model with a stepper: rows, room, tokens, tokens a second, seconds to the first token.",
    )
    costs: TypedJSONColumn[dict[str, documents.CostSnapshot]] = TypedJSONField(
        documents.make_documents_reader(documents.CostSnapshot),
        null=True,
        help_text="By model: the expected time of an engine call, and the last measured calls of each batch shape.",
    )
    is_to_rest = models.BooleanField(
        default=False, db_default=False, help_text="True if an operator has drained the worker."
    )
    started_at = models.DateTimeField(default=clock.estimate_now)
    heartbeat_at = models.DateTimeField(default=clock.estimate_now)

    class Meta:
        ordering = ["-started_at"]
        indexes = [models.Index(fields=["state", "heartbeat_at"], name="worker_presence")]

    def __str__(self) -> str:
        return f"{self.name} ({self.pid})"

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


class PausedModel(models.Model):
    """A model that an operator has paused: no worker begins its jobs, which are accepted and wait."""

    model = models.CharField(max_length=100, primary_key=True)
    paused_at = models.DateTimeField(default=clock.estimate_now)
    paused_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, default=None, on_delete=models.SET_NULL)

    class Meta:
        verbose_name = "model"
        ordering = ["model"]

    def __str__(self) -> str:
        return self.model


class ActKind(models.TextChoices):
    CANCEL = "cancel"
    RETRY = "retry"
    RETRY_ALONE = "retry alone", "Retry alone"


class ActState(models.TextChoices):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"


ACTING = (ActState.WAITING, ActState.RUNNING)


class Act(models.Model):
    """An act of an operator on all jobs of a selection.

    Workers do it in chunks, one after the other, in the order of the jobs' age. A worker that continues an act begins
    after `cursor`.
    """

    id = models.UUIDField(primary_key=True, default=make_row_id, editable=False)
    kind = models.CharField(max_length=12, choices=ActKind)
    state = models.CharField(max_length=10, choices=ActState, default=ActState.WAITING)
    selection = models.JSONField(
        default=dict, help_text="The lookups that select the jobs, as `inference.upkeep.acts` takes them."
    )
    newest = models.UUIDField(help_text="The action leaves out jobs with a later id.")
    counted = models.PositiveIntegerField(
        "found", help_text="Jobs that were found and confirmed. The action handles no more."
    )
    cursor = models.UUIDField(null=True, default=None, help_text="The last job that was handled.")
    done = models.PositiveIntegerField(default=0)
    left = models.JSONField(default=dict, help_text="By reason: how many jobs were not changed.")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, default=None, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(default=clock.estimate_now)
    finished_at = models.DateTimeField(null=True, default=None)
    lease_until = models.DateTimeField(
        null=True, default=None, help_text="The end of the lease of the worker that handles the action."
    )

    class Meta:
        verbose_name = "action"
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.kind} {format_count(self.counted, 'job')}"

    @property
    def is_over(self) -> bool:
        return self.state not in ACTING

    @property
    def handled(self) -> int:
        return int(self.done + sum(self.left.values()))


class WebhookState(models.TextChoices):
    PENDING = "pending"
    DELIVERED = "delivered"
    GIVEN_UP = "given up", "Given up"


class Webhook(models.Model):
    """A notice to a client's address that its job is finished."""

    id = models.UUIDField(primary_key=True, default=make_row_id, editable=False)
    job = models.OneToOneField(Job, on_delete=models.CASCADE)
    url = models.URLField(max_length=500)
    state = models.CharField(max_length=10, choices=WebhookState, default=WebhookState.PENDING)
    attempts = models.PositiveIntegerField(default=0)
    due_at = models.DateTimeField(
        default=clock.estimate_now,
        help_text="The earliest time of the next try, which also waits for the end of the job.",
    )
    last_error = models.CharField(max_length=300, blank=True, default="")

    class Meta:
        indexes = [models.Index(fields=["due_at"], name="webhook_pending", condition=Q(state=WebhookState.PENDING))]

    def __str__(self) -> str:
        return f"{self.url} for {self.job_id}"


class Grain(models.IntegerChoices):
    """The length of time that a `Figure` counts.

    `WRITTEN` is a tick of 15 s as one writer counted it. The others count all writers together.
    """

    WRITTEN = 0
    TICK = 1
    TEN_MINUTES = 2
    THREE_HOURS = 3
    EVER = 4


class Figure(models.Model):
    """Counts of what happened from `start` on, with one model, or with the whole service if `model` is empty."""

    id = models.UUIDField(primary_key=True, default=make_row_id, editable=False)
    grain = models.PositiveSmallIntegerField(choices=Grain)
    start = models.DateTimeField()
    model = models.CharField(max_length=100)
    tally = JSONField(default=dict, help_text="The counts, in the form of `inference.figures.tallies`.")

    class Meta:
        indexes = [models.Index(fields=["grain", "start"], name="figure_by_time")]
        constraints = [
            models.UniqueConstraint(
                fields=["grain", "start", "model"], name="figure_of_all", condition=~Q(grain=Grain.WRITTEN)
            )
        ]

    def __str__(self) -> str:
        return f"{self.model} {self.start:%Y-%m-%d %H:%M:%S}"


class Mark(models.Model):
    """An event that may explain a change of the figures, which operators see on the axis of time."""

    id = models.UUIDField(primary_key=True, default=make_row_id, editable=False)
    at = models.DateTimeField(default=clock.estimate_now)
    kind = models.CharField(max_length=10, help_text="deployed, started, stopped, gone or retention")
    text = models.CharField(max_length=300)

    class Meta:
        indexes = [models.Index(fields=["at"], name="mark_by_time")]

    def __str__(self) -> str:
        return f"{self.kind} {self.text}"
