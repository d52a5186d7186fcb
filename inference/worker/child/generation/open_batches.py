"""The batches that are open in a child process.

Each goes on with a call of its own, and the others wait for their turn meanwhile.
"""

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import cast
from uuid import UUID

from inference import errors, failpoints
from inference.engines.runtime import engine_calls
from inference.engines.stepper import Stepper
from inference.worker.calls import BatchCall, BatchReport
from inference.worker.child import batch_job_rows
from inference.worker.child.generation.open_batch import OpenBatch
from inference.worker.child.loaded_models import LoadedModels

logger = logging.getLogger(__name__)


class OpenBatches:
    """The open batches of one child process."""

    def __init__(self) -> None:
        self.batches: dict[UUID, OpenBatch] = {}

    def continue_batch(self, call: BatchCall, replica: LoadedModels) -> BatchReport:
        """Run the next steps of a batch. An exception that this raises closes the batch."""
        spec = replica.specs[call.digest]
        stepper = cast("Stepper", replica.get_engine(spec).stepper)
        batch = self.batches.setdefault(call.batch, OpenBatch(call.batch, spec, stepper, replica.shared))
        try:
            try:
                claimed = batch_job_rows.claim_jobs(call, replica)
            except errors.StoreUnavailable as error:
                if not call.goes_on:
                    raise
                logger.warning("batch=%s goes on without those that were to join: %s", call.batch, error.message)
                return replace(batch.run_steps((), is_last=call.is_last), put_off=frozenset(call.job_ids))
            failpoints.reach("before_run")
            return batch.run_steps(claimed, is_last=call.is_last)
        except BaseException as error:
            engine_calls.raise_if_device_failed(error)  # this process ends then, with all open batches
            batch.drop_all_jobs()
            raise
        finally:
            if not batch.jobs:
                del self.batches[call.batch]

    def close_abandoned_batches(self, waiting: Collection[UUID], *, call: BatchCall) -> None:
        """Keep the jobs of the `waiting` batches while the call runs, and close all others but its own.

        The main process has lost track of those others: their jobs run elsewhere.
        """
        for batch in list(self.batches.values()):
            if batch.id in waiting:
                batch.renew_leases_for(call.time_limit_s)
            elif batch.id != call.batch:
                self._close_batch(batch)

    def close_all(self) -> None:
        for batch in list(self.batches.values()):
            self._close_batch(batch)

    def _close_batch(self, batch: OpenBatch) -> None:
        logger.warning("batch=%s closed with %d jobs: the main process does not continue it", batch.id, len(batch.jobs))
        del self.batches[batch.id]
        batch.drop_all_jobs()

    def run_all_to_end(self) -> None:
        """Run all open batches to their end, as no other call follows.

        The jobs of a batch that fails are left to the worker that runs them next.
        """
        batches = list(self.batches.values())
        for place, batch in enumerate(batches):
            for other in batches[place + 1 :]:
                other.renew_leases_for(batch.spec.time_limit_s)
            try:
                batch.run_steps((), is_last=True)
            except Exception:
                logger.exception("batch=%s of %d jobs not run to its end", batch.id, len(batch.jobs))
            del self.batches[batch.id]
