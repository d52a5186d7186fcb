"""The recent batches, and the page of one batch, as the rows of jobs record them.

The row of a job has the last batch that claimed it.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from uuid import UUID

from django.utils.safestring import SafeString

from inference.admin.rendering import svg
from inference.batching.costs import CostModel
from inference.models import Job, Status, Worker

RECENT = 400  # jobs of each status of which the list is made
MOST = 1000  # jobs of one batch that are read for a page
RAN = (Status.RUNNING, Status.SUCCEEDED, Status.FAILED)
COLUMNS = ("batch", "batch_size", "model", "worker", "device", "size", "length", "started_at", "finished_at", "status",
           "error_code", "parts")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSummary:
    id: UUID
    jobs: list[Job]  # sorted by length, the longest last
    worker: Worker | None
    cost: CostModel | None  # as that worker has learnt it

    @property
    def model(self) -> str:
        return self.jobs[0].model

    @property
    def device(self) -> str:
        return self.jobs[0].device

    @property
    def input_count(self) -> int:
        """The number of items that ran together: as it was recorded, or as far as it is known."""
        return max((job.batch_size or 0 for job in self.jobs), default=0) or sum(job.size for job in self.jobs)

    @property
    def all_items_ran_together(self) -> bool:
        """True if all items of the batch ran at once. Else jobs joined it later, or were refused."""
        return sum(job.size for job in self.jobs) <= self.input_count

    @property
    def failed_count(self) -> int:
        return sum(job.status == Status.FAILED for job in self.jobs)

    @property
    def started_at(self) -> datetime.datetime | None:
        return min((job.started_at for job in self.jobs if job.started_at), default=None)

    @property
    def longest_length(self) -> int:
        return max(job.length for job in self.jobs)

    @property
    def padding(self) -> int | None:
        """The share of padding in what is computed, in per cent, if all inputs are padded to the longest.

        It is None if not all items ran at once, as it is not known then.
        """
        if not self.all_items_ran_together:
            return None
        sizes = sum(job.size for job in self.jobs)
        return round(100 * (1 - sum(job.length * job.size for job in self.jobs) / (sizes * self.longest_length)))

    @property
    def took_s(self) -> float | None:
        """The seconds from the claim of the batch to its record; None while it runs."""
        ended = [job.finished_at for job in self.jobs]
        if self.started_at is None or not all(ended):
            return None
        return max((max(filter(None, ended)) - self.started_at).total_seconds(), 0.0)

    @property
    def predicted_s(self) -> float | None:
        """The seconds that the worker expects of such a batch now; None if that is not known."""
        if self.cost is None or not self.all_items_ran_together:
            return None
        return self.cost.predict_call_s(self.input_count, self.longest_length)

    @property
    def lengths(self) -> SafeString:
        return svg.draw_columns([job.length for job in self.jobs], to=self.longest_length)


def list_recent_batches() -> list[BatchSummary]:
    """Return the batches of the newest jobs, the latest first."""
    ran = Job.objects.filter(batch__isnull=False, started_at__isnull=False).only(*COLUMNS)
    jobs = [job for status in RAN for job in ran.filter(status=status)[:RECENT]]
    found = sorted(_group_into_batches(jobs), key=lambda batch: str(batch.started_at), reverse=True)
    return found[:RECENT]


def find_batch(batch: UUID) -> BatchSummary | None:
    found = _group_into_batches(Job.objects.filter(batch=batch).only(*COLUMNS, "created_at")[:MOST])
    return next(iter(found), None)


def _group_into_batches(jobs: Iterable[Job]) -> Iterator[BatchSummary]:
    by_batch: dict[UUID, list[Job]] = {}
    for job in jobs:
        if job.batch:
            by_batch.setdefault(job.batch, []).append(job)
    ids = {job.worker for job in chain.from_iterable(by_batch.values()) if job.worker}
    workers = Worker.objects.only("name", "costs").in_bulk(ids)
    for batch, ran in by_batch.items():
        worker = workers.get(ran[0].worker) if ran[0].worker else None
        yield BatchSummary(
            id=batch,
            jobs=sorted(ran, key=lambda job: job.length),
            worker=worker,
            cost=_find_cost_model(worker, ran[0].model),
        )


def _find_cost_model(worker: Worker | None, model: str) -> CostModel | None:
    costs = worker.costs.get(model) if worker else None
    return CostModel.from_snapshot(costs) if costs and costs.calls else None
