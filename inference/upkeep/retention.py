"""The removal of what is old: jobs that ended long ago, rows of ended workers, sessions and log entries of the admin.

The id of a job has its age: a removed job can be distinguished from an unknown one.

Rows are deleted by plain statements, those that refer to them first: Django's own `delete` would read each row with its
inputs and output, to look for what else to delete.
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
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from inference import clock, row_locks
from inference.fields.ids import make_first_id
from inference.figures import rollup, timeline_marks
from inference.models import ENDED, TERMINAL, WAITING, Bulk, Job, Worker
from inference.status.queue_position import extract_creation_ms
from inference.store import transitions
from inference.upkeep import acts

logger = logging.getLogger(__name__)

CHUNK = 2000  # jobs that are removed in one round
STATEMENT = 500  # jobs that one statement removes
PAUSE_S = 600.0  # seconds until the next sweep when there is nothing left to remove
WORKER_DAYS = 7  # days for which the row of an ended worker is kept
LOG_DAYS = 365  # days for which the log of what operators did in the admin is kept
USUAL_SHARE = 0.1  # share of all finished jobs: a sweep that finds more of them overdue removes nothing
COUNTED = 10_000  # overdue jobs that are counted in any case; more only until they are too large a share
SAID_S = 3 * 86_400.0  # seconds for which a worker warns of overdue jobs before it removes them all the same
OVERDUE = datetime.timedelta(hours=1)  # time past the retention time, in which many sweeps should have removed a job


def may_have_been_removed(job_id: UUID) -> bool:
    """Return True if a job of this id, made by this service and no longer there, may have been removed by now."""
    if not settings.JOB_RETENTION_DAYS or job_id.version != 7:
        return False
    return extract_creation_ms(job_id) / 1000 < clock.estimate_now_s() - settings.JOB_RETENTION_DAYS * 86_400


class Sweep:
    """A sweep, which removes what ended more than `JOB_RETENTION_DAYS` before it began, by the database's clock."""

    def __init__(self) -> None:
        kept_s = settings.JOB_RETENTION_DAYS * 86_400
        limit_s = max(0.0, clock.read_database_clock().timestamp() - kept_s)  # no id is from before 1970
        self.limit = datetime.datetime.fromtimestamp(limit_s, datetime.UTC)
        self._reached = UUID(int=0)  # jobs up to this id have been looked at

    @functools.cached_property
    def clock_warning(self) -> str:
        """A warning if an unusual share of all finished jobs is overdue, as if a clock was set forward; else empty."""
        overdue = _select_ended_before(self.limit - OVERDUE).order_by().values("pk")
        if not overdue.exists():
            return ""
        ended = Job.objects.filter(status__in=TERMINAL).order_by().count()  # from an index; overdue jobs are read
        most = max(COUNTED, math.floor(USUAL_SHARE * ended) + 1)
        found = overdue[:most].count()
        if found <= USUAL_SHARE * ended:
            return ""
        return (
            f"{found:,}{' or more' if found == most else ''} of {ended:,} finished jobs ended more than"
            f" JOB_RETENTION_DAYS ({settings.JOB_RETENTION_DAYS:g}) and an hour ago by the database's clock, and are"
            " still there. Nothing that is old is removed before a worker has said so for three days."
        )

    def remove_chunk(self) -> int:
        """Remove a chunk of jobs, and bulks without jobs; return the number of jobs."""
        kept = Q(status__in=WAITING) | Q(finished_at__gte=self.limit)
        needed = Exists(Job.objects.filter(kept, pk=OuterRef("whole")))  # by its whole, if it is a part
        is_open = Exists(Bulk.objects.filter(pk=OuterRef("bulk"), is_open=True))
        old = _select_ended_before(self.limit).filter(~needed, ~is_open, pk__gt=self._reached)
        ids = list(old.order_by("pk").values_list("pk", flat=True)[:CHUNK])
        for start in range(0, len(ids), STATEMENT):
            transitions.delete_ended_jobs(ids[start : start + STATEMENT])
        without_jobs = ~Exists(Job.objects.filter(bulk=OuterRef("pk")))
        row_locks.delete_rows(Bulk.objects.filter(without_jobs, is_open=False, pk__lt=make_first_id(self.limit)))
        if ids:
            self._reached = ids[-1]
            logger.info("%d jobs that ended more than %g days ago removed", len(ids), settings.JOB_RETENTION_DAYS)
        return len(ids)


def _select_ended_before(moment: datetime.datetime) -> QuerySet[Job]:
    """Return the jobs that ended before a moment, found by their ids, as a job is made before it ends.

    Jobs that waited for long, so that they were made before the moment and ended after it, are read in vain.
    """
    ended = Q(finished_at__lt=moment) | Q(finished_at=None)
    return Job.objects.filter(ended, status__in=TERMINAL, pk__lt=make_first_id(moment))


def remove_ended_workers() -> None:
    since = Now() - datetime.timedelta(days=WORKER_DAYS)
    row_locks.delete_rows(Worker.objects.filter(state__in=ENDED, heartbeat_at__lt=since))


def remove_old_admin_records() -> None:
    """Remove the expired sessions of the admin, and old entries of the log of what its users did."""
    row_locks.delete_rows(Session.objects.filter(expire_date__lt=Now()))
    row_locks.delete_rows(LogEntry.objects.filter(action_time__lt=Now() - datetime.timedelta(days=LOG_DAYS)))


class Sweeper:
    """A sweeper, which removes a little at a time from a loop that must not be held up."""

    def __init__(self) -> None:
        self.next_at_s = 0.0
        self._sweep: Sweep | None = None  # the sweep that has begun
        self._said_since_s: float | None = None  # monotonic; it warns since then, and removes nothing

    def sweep(self) -> None:
        if time.monotonic() < self.next_at_s or self._remove_some():
            return
        self._sweep = None
        self.next_at_s = time.monotonic() + PAUSE_S

    def _remove_some(self) -> bool:
        """Remove a chunk, and return True if there is more to remove now."""
        if settings.JOB_RETENTION_DAYS:
            sweep = self._sweep = self._sweep or Sweep()
            now_s = time.monotonic()  # this process's own clock, as the database's may jump
            since_s = now_s if self._said_since_s is None else self._said_since_s
            self._said_since_s = since_s if sweep.clock_warning else None
            if sweep.clock_warning and now_s - since_s < SAID_S:
                logger.warning("%s Look at that clock, then: manage.py remove_old_jobs --force", sweep.clock_warning)
                timeline_marks.mark_retention_stop(sweep.clock_warning)
                return False
            timeline_marks.clear_retention_stop()
            if sweep.remove_chunk() == CHUNK:
                return True
        else:
            timeline_marks.clear_retention_stop()  # nothing is to be removed
        remove_ended_workers()
        remove_old_admin_records()
        acts.remove_old_acts()
        rollup.remove_old_figures()
        return False
