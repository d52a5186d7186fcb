"""Counts of requests by API key, kept in memory and added to the rows of the hour once a minute.

They need not be complete: counts that are not written yet are lost with their process. A key is accepted also while the
database cannot write them.
"""

from __future__ import annotations

import datetime
import logging
import threading
import time
from collections import Counter

from django.db import DatabaseError, InterfaceError, transaction
from django.db.models import F

from api.models import ApiKey, KeyUse
from inference import clock, row_locks

logger = logging.getLogger(__name__)

EVERY_S = 60.0
MOST = 200  # keys that are written at once, while a request waits
KEPT = datetime.timedelta(days=31)


class UsageCounter:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[int] = Counter()  # by the key's id, since the last write
        self._due_at = 0.0
        self._hour: datetime.datetime | None = None  # the hour in which old rows were removed last

    def count_request(self, key_id: int) -> None:
        with self._lock:
            self._requests[key_id] += 1

    def write_if_due(self) -> None:
        if not (counted := self._take_counts(time.monotonic())):
            return
        try:
            self.write_counts(counted)
        except (DatabaseError, InterfaceError) as error:
            logger.warning("the use of %d keys was not noted: %s", len(counted), error)

    def _take_counts(self, now: float) -> dict[int, int]:
        with self._lock:
            if now < self._due_at:
                return {}
            self._due_at = now + EVERY_S
            taken = dict(self._requests.most_common(MOST))
            self._requests -= Counter(taken)
            return taken

    def write_counts(self, counted: dict[int, int]) -> None:
        hour = clock.read_database_clock().replace(minute=0, second=0, microsecond=0)
        with transaction.atomic():
            known = sorted(ApiKey.objects.filter(pk__in=counted).order_by().values_list("pk", flat=True))
            KeyUse.objects.bulk_create([KeyUse(key_id=pk, hour=hour) for pk in known], ignore_conflicts=True)
            for pk in known:
                KeyUse.objects.filter(key_id=pk, hour=hour).update(requests=F("requests") + counted[pk])
            if hour != self._hour:
                row_locks.delete_rows(KeyUse.objects.filter(hour__lt=hour - KEPT))
        self._hour = hour
