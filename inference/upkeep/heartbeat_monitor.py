"""The observer, with which one process judges by its own clock which workers are silent and which leases are over.

That clock is monotonic. The moments in rows are those of the database's clock, which may be set while workers run, or
go on while all of them sleep, as on a laptop.
"""

import datetime
import time
from uuid import UUID

from django.conf import settings
from django.db.models import F, Q

from inference import clock
from inference.models import Worker
from inference.status import workers

SET_S = 5.0  # seconds; if the database's clock advances so much more or less than this process's, it was set


class Observer:
    """The heartbeats and the database's clock as one process has seen them.

    Its `observe_heartbeats` is to be called every few seconds.
    """

    def __init__(self) -> None:
        self._heartbeats: dict[UUID, tuple[datetime.datetime, float]] = {}  # the last, and since when (monotonic)
        self._looked: tuple[float, float] | None = None  # the database's clock and this process's, in seconds
        self._steady_since = float("-inf")  # monotonic seconds; the database's clock was not set since

    def observe_heartbeats(self) -> None:
        """Read the database's clock and the heartbeats of all present workers.

        Raises what the database raises.
        """
        now, seen_at = clock.read_database_clock(), time.monotonic()
        if self._looked and abs(now.timestamp() - self._looked[0] - (seen_at - self._looked[1])) > SET_S:
            self._steady_since = seen_at
        self._looked = now.timestamp(), seen_at
        present = Worker.objects.filter(state__in=workers.PRESENT).values_list("pk", "heartbeat_at")
        self._heartbeats = {worker: self._find_last_heartbeat(worker, beat, now, seen_at) for worker, beat in present}

    def _find_last_heartbeat(
        self, worker: UUID, beat: datetime.datetime, now: datetime.datetime, seen_at: float
    ) -> tuple[datetime.datetime, float]:
        """Return the last heartbeat of a worker, and since when it is the last one by this process's clock.

        Any change of the heartbeat's moment is a sign of life. The age of a heartbeat that is new here is taken from
        the database's clock.
        """
        if known := self._heartbeats.get(worker):
            return known if known[0] == beat else (beat, seen_at)
        return beat, seen_at - max(0.0, (now - beat).total_seconds())

    def find_silent_workers(self) -> dict[UUID, datetime.datetime]:
        """Return by worker the last heartbeat of those not heard for `WORKER_SILENT_S`, as of the last look."""
        silent_since = time.monotonic() - settings.WORKER_SILENT_S
        return {worker: beat for worker, (beat, since) in self._heartbeats.items() if since < silent_since}

    def make_expired_lease_condition(self, *, database_up_s: float) -> Q:
        """Return the condition for running jobs whose lease is over.

        A lease holds for as long as it was given for. Only time counts in which the database has answered this process
        (for `database_up_s` by now) and in which its clock was not set.
        """
        if self._looked is None:
            return Q(pk__in=())
        now_s, seen_at = self._looked
        over = Q(lease_until__lt=datetime.datetime.fromtimestamp(now_s, datetime.UTC))
        seen_s = min(database_up_s, seen_at - self._steady_since)
        if seen_s < datetime.timedelta.max.total_seconds():
            over &= Q(lease_until__lte=F("started_at") + datetime.timedelta(seconds=seen_s))
        return over
