"""Finished jobs are removed when they are old, and the rows of workers that have ended. An id tells its own age: the
removed are told from the unknown.

Rows are deleted where they lie, what refers to them first: Django's own `delete` would read each with its inputs and
output, to look for what else to delete.
"""

import datetime
import logging
import time
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, Model, OuterRef, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from inference.fields.ids import first_id_at
from inference.figures import fold
from inference.models import ENDED, TERMINAL, WAITING, Bulk, Job, Webhook, Worker
from inference.status.backlog import milliseconds
from inference.upkeep import acts

logger = logging.getLogger(__name__)

CHUNK = 2000  # jobs of one round
STATEMENT = 500  # jobs of one statement
PAUSE_S = 600.0  # when there is nothing left to remove
WORKER_DAYS = 7  # that the row of a worker that has ended is kept


def is_past(job_id: UUID) -> bool:
    """Whether a job of this id, made by this service, would have been removed by now."""
    if not settings.JOB_RETENTION_DAYS or job_id.version != 7:
        return False
    return milliseconds(job_id) / 1000 < time.time() - settings.JOB_RETENTION_DAYS * 86_400


def remove_old() -> int:
    """Remove a chunk of finished jobs past the retention time, and bulks without jobs. Returns how many jobs."""
    if not settings.JOB_RETENTION_DAYS:
        return 0
    limit_s = max(0.0, timezone.now().timestamp() - settings.JOB_RETENTION_DAYS * 86_400)  # no id is from before 1970
    limit = first_id_at(datetime.datetime.fromtimestamp(limit_s, datetime.UTC))
    needed = Exists(Job.objects.filter(pk=OuterRef("whole"), status__in=WAITING))  # by the job that it is a part of
    old = Job.objects.filter(~needed, status__in=TERMINAL, pk__lt=limit).order_by("pk").values_list("pk", flat=True)
    ids = list(old[:CHUNK])
    for start in range(0, len(ids), STATEMENT):
        _remove_jobs(ids[start : start + STATEMENT])
    _delete(Bulk.objects.filter(pk__lt=limit, job=None))
    if ids:
        logger.info("%d finished jobs older than %g days removed", len(ids), settings.JOB_RETENTION_DAYS)
    return len(ids)


def _remove_jobs(ids: list[UUID]) -> None:
    with transaction.atomic():
        _delete(Webhook.objects.filter(job__in=ids))
        _delete(Job.objects.filter(pk__in=ids))


def _delete(rows: QuerySet[Model]) -> None:
    rows._raw_delete(rows.db)


def remove_ended_workers() -> None:
    since = Now() - datetime.timedelta(days=WORKER_DAYS)
    _delete(Worker.objects.filter(state__in=ENDED, heartbeat_at__lt=since))


class Sweeper:
    """Removes a little at a time from a loop that must not be held up."""

    def __init__(self) -> None:
        self.next_at_s = 0.0

    def sweep(self) -> None:
        if time.monotonic() >= self.next_at_s and remove_old() < CHUNK:
            remove_ended_workers()
            acts.remove_old()
            fold.remove_old()
            self.next_at_s = time.monotonic() + PAUSE_S
