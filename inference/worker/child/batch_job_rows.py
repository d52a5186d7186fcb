"""The rows of a batch: they are claimed before it runs and recorded as it ends."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.conf import settings

from inference import errors, failpoints
from inference.catalog import reader, request_validation, specs
from inference.catalog.specs import ModelSpec
from inference.connection_retries import is_away, retry_while_away
from inference.store import outcome_records, transitions
from inference.store.outcome_records import Outcome
from inference.store.transitions import Claimed
from inference.telemetry import logs
from inference.worker.calls import BatchCall
from inference.worker.child.loaded_models import LoadedModels
from inference.worker.child.outcome_builder import replace_unstorable_outcome
from inference.worker.replicas import devices

logger = logging.getLogger(__name__)

CLAIM_PATIENCE_S = 8.0  # seconds; then the main process sends the batch again later
RECORD_PATIENCE_S = 3600.0  # seconds for which results are kept while the database is away


def claim_jobs(call: BatchCall, replica: LoadedModels) -> list[Claimed]:
    """Claim the jobs of a call, and return those that were claimed.

    Raises `StoreUnavailable` while the database is away. No job of the call has begun then.
    """

    def claim_rows() -> list[Claimed]:
        return transitions.claim_jobs(
            call.job_ids,
            call.batch,
            model=call.model,
            time_limit_s=call.ahead_s + call.time_limit_s,
            alone=call.alone,
            takes_over=call.takes_over,
            worker=replica.worker,
            device=devices.truncate_device_name(replica.host_device),
        )

    failpoints.reach("before_claim")
    try:
        jobs = retry_while_away(claim_rows, limit_s=CLAIM_PATIENCE_S) if call.job_ids else []
    except Exception as error:
        if is_away(error):
            raise errors.StoreUnavailable(f"no claim, the database is away: {error}") from None
        raise
    failpoints.reach("after_claim")
    return jobs


def check_parameters_again(spec: ModelSpec, job: Claimed, *, is_last: bool) -> dict[str, Any]:
    """Check the parameters of a job again, and return them.

    The web process has checked them, but any other program can write a row. Raises `InvalidInput` if the model does not
    take them, and `NotYet` for a job that was accepted by a newer entry of the model.
    """
    try:
        return request_validation.validate_parameters(spec, job.parameters)
    except errors.InvalidInput:
        if not is_last and _is_for_newer(spec, job.parameters):
            raise errors.NotYet(f"{spec.name}: accepted by an entry that is not loaded here yet.") from None
        raise


def _is_for_newer(spec: ModelSpec, parameters: dict[str, object]) -> bool:
    """Return True if the models file has another entry of the model now, which takes these parameters.

    A web process may have read the file before this worker did.
    """
    try:
        newer = reader.load_catalog(settings.MODELS_FILE).get(spec.name, spec)
        request_validation.validate_parameters(newer, parameters)
    except (specs.CatalogError, errors.InvalidInput):
        return False
    return newer.digest != spec.digest


def record_outcomes(
    batch: UUID, outcomes: Sequence[Outcome], *, batch_size: int, beside: Mapping[str, Any] | None = None
) -> list[Outcome]:
    """Record the outcomes of a batch, and return them as they were recorded.

    They are recorded all at once. If the database refuses that, they are recorded one by one, so that the outcome at
    fault fails alone. `beside` holds further counts, which are recorded with them once.
    """
    try:
        _record_at_once(batch, outcomes, batch_size, beside)
    except Exception as error:
        if is_away(error) or (len(outcomes) == 1 and outcomes[0].error_code == errors.BadOutput.code):
            raise
        logger.error(
            "batch=%s jobs=%d not recorded, the database refuses it: %s",
            batch,
            len(outcomes),
            logs.describe_error(error),
        )
        if len(outcomes) == 1:
            outcomes = [replace_unstorable_outcome(outcomes[0])]
        besides = (beside, *[None] * (len(outcomes) - 1))
        return [
            done
            for outcome, beside in zip(outcomes, besides, strict=True)
            for done in record_outcomes(batch, [outcome], batch_size=batch_size, beside=beside)
        ]
    return list(outcomes)


def _record_at_once(
    batch: UUID, outcomes: Sequence[Outcome], batch_size: int, beside: Mapping[str, Any] | None
) -> None:
    recorded = retry_while_away(
        lambda: outcome_records.record_outcomes(batch, outcomes, batch_size=batch_size, beside=beside),
        limit_s=RECORD_PATIENCE_S,
    )
    if dropped := len(outcomes) - recorded:
        logger.info("batch=%s %d of %d outcomes dropped: cancelled or given back", batch, dropped, len(outcomes))
    if logger.isEnabledFor(logging.DEBUG):
        for outcome in outcomes:
            logger.debug("batch=%s job=%s %s %s", batch, outcome.job_id, outcome.status.value, outcome.error_code)
