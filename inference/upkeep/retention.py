"""Finished jobs are removed when they ended long ago, as are the rows of workers that have ended, and the sessions and
the log of the admin. An id tells its own age: the removed are told from the unknown.

Rows are deleted where they lie, what refers to them first: Django's own `delete` would read each with its inputs and
output, to look for what else to delete.
"""

import datetime
import functools
import logging
import math
import time
from uuid import UUID

from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.sessions.models import Session
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from inference import clock, queries
from inference.fields.ids import first_id_at
from inference.figures import fold, marks
from inference.models import ENDED, TERMINAL, WAITING, Bulk, Job, Webhook, Worker
from inference.status.backlog import milliseconds
from inference.upkeep import acts

logger = logging.getLogger(__name__)

CHUNK = 2000  # jobs of one round
STATEMENT = 500  # jobs of one statement
PAUSE_S = 600.0  # when there is nothing left to remove
WORKER_DAYS = 7  # that the row of a worker that has ended is kept
LOG_DAYS = 365  # that it is kept what an operator did in the admin
USUAL_SHARE = 0.1  # of all finished jobs: a sweep that finds more of them overdue removes nothing
COUNTED = 10_000  # overdue jobs that are counted in any case; of more only whether they are too large a share
SAID_S = 3 * 86_400.0  # for which a worker says so before it removes them all the same
OVERDUE = datetime.timedelta(hours=1)  # past the retention time: any of many sweeps should have removed such a job


def is_past(job_id: UUID) -> bool:
    """Whether a job of this id, made by this service, that is not there may have been removed by now."""
    if not settings.JOB_RETENTION_DAYS or job_id.version != 7:
        return False
    return milliseconds(job_id) / 1000 < clock.time_s() - settings.JOB_RETENTION_DAYS * 86_400


def remove_old() -> int:
    """Remove a chunk of finished jobs past the retention time, and bulks without jobs. Returns how many jobs."""
    return Sweep().remove_some() if settings.JOB_RETENTION_DAYS else 0


class Sweep:
    """Removes what has ended more than `JOB_RETENTION_DAYS` before the sweep began, by the database's clock."""

    def __init__(self) -> None:
        kept_s = settings.JOB_RETENTION_DAYS * 86_400
        limit_s = max(0.0, clock.of_database().timestamp() - kept_s)  # no id is from before 1970
        self.limit = datetime.datetime.fromtimestamp(limit_s, datetime.UTC)
        self._reached = UUID(int=0)  # jobs up to this id have been looked at

    @functools.cached_property
    def problem(self) -> str:
        """Say where an unusual share of all finished jobs is overdue: a clock may have been set forward."""
        overdue = _ended_before(self.limit - OVERDUE).order_by().values("pk")
        if not overdue.exists():
            return ""
        ended = Job.objects.filter(status__in=TERMINAL).order_by().count()  # of an index; the others are read
        most = max(COUNTED, math.floor(USUAL_SHARE * ended) + 1)
        found = overdue[:most].count()
        if found <= USUAL_SHARE * ended:
            return ""
        return (
            f"{found:,}{' or more' if found == most else ''} of {ended:,} finished jobs ended more than"
            f" JOB_RETENTION_DAYS ({settings.JOB_RETENTION_DAYS:g}) and an hour ago by the database's clock, and are"
            " still there. Nothing that is old is removed before a worker has said so for three days."
        )

    def remove_some(self) -> int:
        """Remove a chunk of jobs, and bulks without jobs. Returns how many jobs."""
        kept = Q(status__in=WAITING) | Q(finished_at__gte=self.limit)
        needed = Exists(Job.objects.filter(kept, pk=OuterRef("whole")))  # by the job that it is a part of
        old = _ended_before(self.limit).filter(~needed, pk__gt=self._reached)
        ids = list(old.order_by("pk").values_list("pk", flat=True)[:CHUNK])
        for start in range(0, len(ids), STATEMENT):
            _remove_jobs(ids[start : start + STATEMENT])
        without_jobs = ~Exists(Job.objects.filter(bulk=OuterRef("pk")))
        queries.delete(Bulk.objects.filter(without_jobs, pk__lt=first_id_at(self.limit)))
        if ids:
            self._reached = ids[-1]
            logger.info("%d jobs that ended more than %g days ago removed", len(ids), settings.JOB_RETENTION_DAYS)
        return len(ids)


def _ended_before(moment: datetime.datetime) -> QuerySet[Job]:
    """Find them by their ids, as a job is made before it ends. Those that waited for long are looked at in vain."""
    ended = Q(finished_at__lt=moment) | Q(finished_at=None)
    return Job.objects.filter(ended, status__in=TERMINAL, pk__lt=first_id_at(moment))


def _remove_jobs(ids: list[UUID]) -> None:
    with transaction.atomic():
        queries.delete(Webhook.objects.filter(job__in=ids))
        queries.delete(Job.objects.filter(pk__in=ids))


def remove_ended_workers() -> None:
    since = Now() - datetime.timedelta(days=WORKER_DAYS)
    queries.delete(Worker.objects.filter(state__in=ENDED, heartbeat_at__lt=since))


def remove_old_log_ins() -> None:
    """Remove the sessions of the admin that are over, and what its users did long ago."""
    queries.delete(Session.objects.filter(expire_date__lt=Now()))
    queries.delete(LogEntry.objects.filter(action_time__lt=Now() - datetime.timedelta(days=LOG_DAYS)))


class Sweeper:
    """Removes a little at a time from a loop that must not be held up."""

    def __init__(self) -> None:
        self.next_at_s = 0.0
        self._sweep: Sweep | None = None  # that has begun
        self._said_since_s: float | None = None  # monotonic: that it removes nothing

    def sweep(self) -> None:
        if time.monotonic() < self.next_at_s or self._goes_on():
            return
        self._sweep = None
        self.next_at_s = time.monotonic() + PAUSE_S

    def _goes_on(self) -> bool:
        """Remove some, and return whether there is more to remove now."""
        if settings.JOB_RETENTION_DAYS:
            sweep = self._sweep = self._sweep or Sweep()
            now_s = time.monotonic()  # this process's own clock, which no jump of the database's moves
            since_s = now_s if self._said_since_s is None else self._said_since_s
            self._said_since_s = since_s if sweep.problem else None
            if sweep.problem and now_s - since_s < SAID_S:
                logger.warning("%s Look at that clock, then: manage.py remove_old_jobs --force", sweep.problem)
                marks.retention_stopped(sweep.problem)
                return False
            marks.retention_goes_on()
            if sweep.remove_some() == CHUNK:
                return True
        else:
            marks.retention_goes_on()  # nothing is to be removed
        remove_ended_workers()
        remove_old_log_ins()
        acts.remove_old()
        fold.remove_old()
        return False
