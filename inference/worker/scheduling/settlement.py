"""The settlement of a batch whose call is over: its jobs are released, or run again in parts."""

import logging
from collections.abc import Callable, Sequence

from inference import clock, errors, failpoints
from inference.batching.queue import BatchQueue
from inference.figures import tally_rows
from inference.telemetry import logs
from inference.worker.calls import NO_JOB, BatchReport, ProcessLost, RemoteError
from inference.worker.replicas.device_health import Incident
from inference.worker.scheduling.backlog import Backlog
from inference.worker.scheduling.generation_stats import GenerationStats
from inference.worker.scheduling.held_jobs import Batch, HeldJob
from inference.worker.scheduling.isolation import RETRY_S
from inference.worker.scheduling.scheduler import LONG
from inference.worker.scheduling.spare_threads import SpareThreads

logger = logging.getLogger(__name__)

# The error codes of jobs that a device has computed; those that succeed have none.
COMPUTED = {
    "", errors.EngineError.code, errors.BadOutput.code, errors.InvalidInput.code, errors.ContextLengthExceeded.code
}  # fmt: skip
SUSPENDED = 0.25  # share of a time limit: no job is blamed if the worker itself was stopped for longer within it


class Settlement:
    """The component that settles batches. Its argument `end` ends a child process, given its pid."""

    def __init__(self, backlog: Backlog, spare_threads: SpareThreads, end: Callable[[int], object]) -> None:
        self.backlog = backlog
        self._spare_threads = spare_threads
        self.jobs_finished = 0
        self.generated = GenerationStats()
        self._end = end

    def settle_finished_batch(self, batch: Batch, report: BatchReport) -> None:
        self.backlog.isolation.note_success(batch)
        if report.engine_s:
            self.backlog.replicas.device_health.note_success(batch.device)
        queue = self.backlog.queues[batch.spec.name]
        now = self.backlog.specs.get(batch.spec.name)
        is_current = now is not None and now.load_digest == batch.spec.load_digest
        if report.capacity:
            self._learn_step_costs(batch, report)
        self._spare_threads.learn_from_report(batch, report)
        if is_current:
            self._learn_costs(batch, queue, report)
        failpoints.reach("before_ack")
        self._put_off_jobs(batch, report)
        if report.engine_s and batch.jobs:
            self.backlog.update_gone_share(len(batch.jobs), len(report.errors))
        self._release_jobs(batch.jobs, report)
        failpoints.reach("after_ack")
        failed = sum(map(bool, report.errors.values()))
        logger.log(
            logging.INFO if failed else logging.DEBUG,
            "batch=%s model=%s jobs=%d run=%d failed=%d engine_ms=%.1f",
            batch.id,
            batch.spec.name,
            len(batch.jobs),
            len(report.errors),
            failed,
            report.engine_s * 1000,
        )

    def _learn_costs(self, batch: Batch, queue: BatchQueue, report: BatchReport) -> None:
        """Learn the costs of an engine call, which are those of a call without spare threads."""
        is_measured = report.engine_s > 0 and report.calls == 1  # no culprit was isolated
        if is_measured:
            queue.set_padding_and_truncation(padded=report.padded, cut_at=report.cut_at)
        if is_measured and not batch.spare_threads:
            self._note_cost(batch, report)
            queue.learn_call(report.size, report.length, report.engine_s, jobs=report.jobs)
            queue.costs.learn_read_time(report.read_s)
            queue.costs.learn_overhead(report.overhead_s, jobs=max(1, report.jobs))
            is_long = report.engine_s > LONG * (report.overhead_s + report.read_s)
            self.backlog.note_long_calls(batch.spec.name, is_long=is_long)
        if report.oom_shape:
            queue.limit_after_out_of_memory(*report.oom_shape, now_s=clock.estimate_earliest_now_s())

    def _note_cost(self, batch: Batch, report: BatchReport) -> None:
        """Record how far off the expected cost of an engine call was, before it is learnt from the call."""
        expected_s = self.backlog.queues[batch.spec.name].costs.predict_engine_s(report.size, report.length)
        cost = {"expected_s": expected_s, "real_s": report.engine_s, "off_s": abs(report.engine_s - expected_s)}
        tally_rows.note_tally(batch.spec.name, {"cost": cost})

    def settle_steps(self, batch: Batch, report: BatchReport) -> None:
        """Release the jobs of an open batch that have ended. The others continue."""
        batch.note_room(report.room)
        self.backlog.queues[batch.spec.name].set_padding_and_truncation(
            padded=report.room.longest > 0, cut_at=report.cut_at
        )
        self._learn_step_costs(batch, report)
        self._spare_threads.learn_from_report(batch, report)
        self._put_off_jobs(batch, report)
        ended = batch.take_out_jobs({held.job_id for held in batch.jobs} - report.left)
        self._release_jobs(ended, report)

    def _put_off_jobs(self, batch: Batch, report: BatchReport) -> None:
        """Take the jobs that could not join out of the batch, to be tried again later by themselves."""
        put_off = batch.take_out_jobs(report.put_off)
        for held in put_off:
            held.add_ended_batch(batch.id)
        self.backlog.isolation.postpone_joining_jobs(put_off)

    def _learn_step_costs(self, batch: Batch, report: BatchReport) -> None:
        """Learn how many jobs are answered in how much time. No batch is formed by the cost of steps."""
        self.generated.add_report(batch, report)
        jobs = self.generated.convert_tokens_to_answers(batch.spec.name, report.tokens)
        if report.engine_s and jobs and not batch.spare_threads:
            self.backlog.queues[batch.spec.name].costs.learn_call(max(1, report.size), 1.0, report.engine_s, jobs=jobs)

    def rerun_batch_without_blame(self, batch: Batch) -> None:
        """Run a batch again that was lost by no fault of its jobs."""
        for held in batch.jobs:
            held.add_ended_batch(batch.id)
        self.backlog.isolation.retry_same_batch(batch)

    def _release_jobs(self, jobs: Sequence[HeldJob], report: BatchReport) -> None:
        for held in jobs:
            self.jobs_finished += 1
            error = report.errors.get(held.job_id, "")
            if held.job_id in report.errors:
                self._note_fault(held, error)
            else:  # its row could not be claimed any more
                self.backlog.return_cost_to_owner(held)
            self.backlog.acknowledge_job(held, error, report.engine_s)

    def _note_fault(self, held: HeldJob, error: str) -> None:
        """Note whether the device or the job was at fault, if a device failed with the job before."""
        if held.incident and error == errors.DeviceFailed.code:
            held.incident.note_faulty_job()
        elif held.incident and error in COMPUTED:
            self.backlog.replicas.device_health.note_success_elsewhere(held.incident)

    def settle_failed_batch(self, batch: Batch, cause: BaseException) -> None:
        if isinstance(cause, errors.ModelUnavailable):  # raised before the claim: the rows are unchanged
            self.backlog.isolation.retry_unbegun_batch(batch, cause)
            return
        self._spare_threads.withhold_threads(batch)
        for held in batch.jobs:
            held.add_ended_batch(batch.id)
        if isinstance(cause, errors.DeviceFailed):
            self._settle_device_failure(batch, cause)
        elif batch.stuck:
            self.backlog.isolation.retry_blocked_batch(batch, cause)
        elif isinstance(cause, ProcessLost) and self._is_innocent(batch):
            logger.error("batch=%s of %d lost: its process ended, perhaps of another batch", batch.id, len(batch.jobs))
            self.backlog.isolation.retry_same_batch(batch)
        elif isinstance(cause, ProcessLost):
            if cause.is_past_limit and batch.suspended_s > SUSPENDED * batch.spec.time_limit_s:
                self.backlog.isolation.retry_after_worker_suspension(batch, cause)
            elif culprit := self._find_job_at_work(batch):
                self.backlog.isolation.blame_job(culprit, batch, cause)
            else:
                self.backlog.isolation.search_culprit(batch, cause)
        elif isinstance(cause, errors.InferenceError) and cause.retryable:
            self.backlog.isolation.retry_unbegun_batch(batch, cause)
        else:
            trace = f"\n{cause.trace}" if isinstance(cause, (RemoteError, errors.InferenceError)) else ""
            logger.error("batch=%s its call raised %s%s", batch.id, logs.describe_error(cause), trace)
            self.settle_unexpected_failure(batch, cause)

    def _find_job_at_work(self, batch: Batch) -> HeldJob | None:
        """Return the one job that the engine of an open batch was busy with as its process ended, if any."""
        shared = self.backlog.replicas.find_child_shared_state(batch.pid)
        job = bytes(shared.job) if shared else NO_JOB
        return next((held for held in batch.jobs if held.job_id.bytes == job), None)

    def _is_innocent(self, batch: Batch) -> bool:
        """Return True if a batch, one of several in its child process, is not known to have ended the process.

        It was not being computed, or it is a single job beside which another batch was read: that may have kept the
        interpreter. Such a batch runs again alone in its child.
        """
        shared = self.backlog.replicas.find_child_shared_state(batch.pid)
        if not batch.has_company or shared is None or shared.computing != batch.number:
            return batch.has_company
        return len(batch.jobs) == 1 and shared.reading not in (0, batch.number)

    def settle_unexpected_failure(self, batch: Batch, cause: BaseException) -> None:
        for held in batch.jobs:
            held.add_ended_batch(batch.id)
        if not batch.begun[0].verdict:
            self.backlog.isolation.run_halves(batch, cause, after_s=RETRY_S)
            return
        why = logs.describe_error(cause)
        logger.error("batch=%s its verdict was not recorded, its row is left to the reconciler: %s", batch.id, why)
        self._release_jobs(batch.jobs, BatchReport(errors={}))

    def _settle_device_failure(self, batch: Batch, cause: BaseException) -> None:
        """End the process whose device failed, and run the halves of its batch again.

        One bad input can put a device into a sticky error state, which ends with the process. Whether the device itself
        is lost shows when the next process starts, or when the same jobs run in other processes.
        """
        incident = Incident(device=batch.device, jobs=len(batch.jobs))
        for held in batch.jobs:
            held.incident = incident
            held.failed_on |= {batch.device}
        self._end(batch.pid)
        self.backlog.isolation.run_halves(batch, cause)
