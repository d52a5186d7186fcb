"""What becomes of a batch whose call is over: its jobs are released, or run again in parts."""

import logging
import math
from collections.abc import Callable
from typing import Any
from uuid import UUID

from billiard.exceptions import Terminated, WorkerLostError

from inference import clock, errors, failpoints
from inference.worker.backlog import Backlog
from inference.worker.calls import PAST_ITS_LIMIT, BatchReport
from inference.worker.inflight import Batch
from inference.worker.isolation import RETRY_S

logger = logging.getLogger(__name__)


class Settlement:
    """`end` ends the process of a pool child."""

    def __init__(self, backlog: Backlog, end: Callable[[int], object]) -> None:
        self.backlog = backlog
        self.jobs_finished = 0
        self._end = end

    def finished(self, batch: Batch, report: BatchReport) -> None:
        self.backlog.isolation.succeeded(batch)
        queue = self.backlog.queues[batch.spec.name]
        if report.engine_s and report.calls == 1:
            queue.ran(report.size, report.length, report.engine_s, jobs=len(report.errors))
            queue.costs.observe_overhead(report.overhead_s)
            queue.padded = report.padded
            queue.cut_at = report.cut_at or math.inf
        if report.oom_shape:
            queue.out_of_memory(*report.oom_shape, now_s=clock.time_s())
        failpoints.reach("before_ack")
        self._release(batch, report)
        failpoints.reach("after_ack")
        failed = sum(map(bool, report.errors.values()))
        logger.log(
            logging.INFO if failed else logging.DEBUG, "batch=%s model=%s jobs=%d run=%d failed=%d engine_ms=%.1f",
            batch.id, batch.spec.name, len(batch.jobs), len(report.errors), failed, report.engine_s * 1000,
        )  # fmt: skip

    def _release(self, batch: Batch, report: BatchReport) -> None:
        for held in batch.jobs:
            self.jobs_finished += 1
            self.backlog.release(held, report.errors.get(UUID(held.item.id), ""), report.engine_s)

    def failed(self, batch: Batch, info: Any) -> None:
        cause = getattr(info.exception, "exc", info.exception)
        if isinstance(cause, errors.ModelUnavailable):  # told before the claim: the rows are as they were
            self.backlog.isolation.retry(batch, cause)
            return
        for held in batch.jobs:
            held.takes_over = batch.id
        if isinstance(cause, errors.DeviceFailed):
            self._device_failed(batch, cause)
        elif batch.stuck:
            self.backlog.isolation.was_stuck(batch, cause)
        elif isinstance(cause, (WorkerLostError, Terminated)):
            batch.timed_out = f"signal {PAST_ITS_LIMIT:d} " in str(cause)
            self.backlog.isolation.died(batch, cause)
        elif isinstance(cause, errors.InferenceError) and cause.retryable:
            self.backlog.isolation.retry(batch, cause)
        else:
            self.broke(batch, cause)

    def broke(self, batch: Batch, cause: BaseException) -> None:
        if not batch.jobs[0].verdict:
            self.backlog.isolation.halve(batch, cause, after_s=RETRY_S)
            return
        logger.error("batch=%s its verdict was not recorded, its row is left to the reconciler: %r", batch.id, cause)
        self._release(batch, BatchReport(errors={}))

    def _device_failed(self, batch: Batch, cause: BaseException) -> None:
        """One bad input can put a device into a sticky error state, which ends with the process. Whether the device
        itself is lost is not told by jobs, but by the start of the next process."""
        if batch.pid is not None:
            self._end(batch.pid)
        self.backlog.isolation.halve(batch, cause)
