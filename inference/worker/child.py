"""What a pool child does: claim, run, record, notify. The only place where torch and the engines are."""

import contextlib
import ctypes
import faulthandler
import importlib
import logging
import os
import signal
import threading
import time
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from uuid import UUID

from celery.utils.log import current_process_index
from django.db import connection

from inference import errors, failpoints
from inference.catalog import lengths, validation
from inference.catalog.specs import ModelSpec, parameters_digest
from inference.engines import loading
from inference.engines.base import Engine
from inference.engines.faults import shorten
from inference.engines.isolate import RunReport
from inference.engines.isolate import run as run_engine
from inference.engines.json_values import size
from inference.failures import is_away, patiently
from inference.json_field import storable
from inference.store import transitions
from inference.store.transitions import Claimed, Outcome
from inference.worker.calls import ENDED_BY_IT, PAST_ITS_LIMIT, READY, BatchCall, BatchReport, Loaded
from inference.worker.devices import Plan

logger = logging.getLogger(__name__)

CLAIM_PATIENCE_S = 8.0  # then the main process sends the batch again later
RECORD_PATIENCE_S = 3600.0  # results are kept for as long

MOST_ANSWERED = 2_000_000  # numbers: what a process that shows them takes 150 MB for

VERDICTS = {
    error.code: error
    for error in (
        errors.Crashed("The process that ran this input died, twice, and with this input alone."),
        errors.DeviceFailed("The device went into an error state with this input alone, twice."),
        errors.JobError("The worker failed with this input alone, twice; its log says why."),
        errors.TimedOut("This input ran past the model's time_limit_s, alone in its batch."),
    )
}


@dataclass(slots=True)
class Replica:
    """The models of this child, on its device."""

    worker: UUID
    device: str
    specs: Mapping[str, ModelSpec] = field(default_factory=dict)  # of all that it is to load
    engines: dict[str, Engine] = field(default_factory=dict)
    # The how many-th of them is being loaded, or 0; the main process reads it.
    loading: ctypes.c_int = field(default_factory=ctypes.c_int)


replica: Replica


def start(plan: Plan, without: Collection[str], loading: ctypes.c_int) -> Loaded:
    """Bind the device, load and warm up the models. Runs once, before the child takes calls."""
    global replica  # noqa: PLW0603 - of this process
    # The main process asks for the stack before it kills.
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
    faulthandler.register(PAST_ITS_LIMIT, file=2, all_threads=True, chain=True)
    threading.Thread(target=threading.Event().wait, name="hears-signals", daemon=True).start()
    device = plan.bind(current_process_index(base=0) or 0)
    replica = Replica(worker=plan.worker, device=device, specs=plan.models, loading=loading)
    return load_missing(without)


def load_missing(without: Collection[str] = ()) -> Loaded:
    """Load what is not loaded. A model that cannot be leaves the others as they are; a broken device takes them all."""
    importlib.invalidate_caches()
    failures = {name: errors.ModelUnavailable(ENDED_BY_IT) for name in without}
    missing = [name for name in replica.specs if name not in (replica.engines | failures)]
    failures |= {name: failure for name in missing if (failure := _load(name))}
    if broken := loading.broken(replica.device):
        replica.engines.clear()
        failures = dict.fromkeys(replica.specs, broken)
    return Loaded(
        pid=os.getpid(),
        models={name: storable(failures[name].message) if name in failures else READY for name in replica.specs},
        notes={name: engine.note for name, engine in replica.engines.items() if engine.note},
        tracebacks={name: _trace(failure) for name, failure in failures.items() if loading.is_bug(failure)},
    )


def _load(name: str) -> errors.ModelUnavailable | None:
    """Why the model could not be loaded."""
    started = time.monotonic()
    replica.loading.value = 1 + list(replica.specs).index(name)
    try:
        replica.engines[name] = loading.ready(replica.specs[name], replica.device)
    except errors.ModelUnavailable as failure:
        logger.debug("model=%s not loaded on %s", name, replica.device, exc_info=True)
        return failure
    finally:
        replica.loading.value = 0
    logger.info("model=%s loaded on %s in %.1f s", name, replica.device, time.monotonic() - started)
    if note := replica.engines[name].note:
        logger.warning("model=%s %s", name, note)
    return None


def _trace(failure: errors.ModelUnavailable) -> str:
    return "".join(traceback.format_exception(failure.__cause__)).rstrip()


def run_batch(call: BatchCall) -> BatchReport:
    """Run one batch from claim to notice."""
    started = time.monotonic()
    if not call.verdict and call.model not in replica.engines:
        raise errors.ModelUnavailable(f"{call.model} is not loaded in the process that was to run it.")
    failpoints.reach("before_claim")
    jobs = _claim(call)
    failpoints.reach("after_claim")
    if not jobs:
        return BatchReport(errors={})
    reports: list[RunReport] = []
    if call.verdict:
        outcomes = [_failed(job.id, VERDICTS[call.verdict]) for job in jobs]
    else:
        failpoints.reach("before_run")
        outcomes, reports = _run(call.model, jobs)
        failpoints.reach("after_run")
    outcomes = _record(call.batch, outcomes, batch_size=sum(job.size for job in jobs))
    return _report(jobs, outcomes, reports, took_s=time.monotonic() - started)


def _claim(call: BatchCall) -> list[Claimed]:
    """Raises `StoreUnavailable` while the database is away: nothing has begun."""

    def statement() -> list[Claimed]:
        return transitions.claim(
            call.job_ids, call.batch, model=call.model, time_limit_s=call.time_limit_s, alone=call.alone,
            takes_over=call.takes_over, worker=replica.worker, device=replica.device,
        )  # fmt: skip

    try:
        return patiently(statement, limit_s=CLAIM_PATIENCE_S, reconnect=connection.close)
    except Exception as error:
        if is_away(error):
            raise errors.StoreUnavailable(f"no claim, the database is away: {error}") from None
        raise


def _run(model: str, jobs: Sequence[Claimed]) -> tuple[list[Outcome], list[RunReport]]:
    """One engine call a set of parameters; the messages already grouped them, so there is one set."""
    outcomes: list[Outcome] = []
    reports: list[RunReport] = []
    engine = replica.engines[model]
    for same in _by_parameters(jobs):
        try:  # again: the web process did, but a row can be written by anybody
            parameters = validation.validate_parameters(engine.spec, same[0].parameters)
        except errors.InvalidInput as error:
            outcomes += [_failed(job.id, error) for job in same]
            continue
        items = [item for job in same for item in _items(job)]
        with _limited(engine.spec.time_limit_s):
            report = run_engine(engine, items, parameters)
        reports.append(report)
        answers = iter(report.outcomes)
        outcomes += [_outcome(job, [next(answers) for _ in _items(job)]) for job in same]
    return outcomes, reports


@contextlib.contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    """Past the limit this process prints its stacks and dies, also when a C call of the engine holds the interpreter
    or hears no signal: another thread does. Waits for the database do not count.

    faulthandler's own timer starts and ends a thread for each call: 0.3 ms instead of 4 µs."""
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _by_parameters(jobs: Sequence[Claimed]) -> Iterator[list[Claimed]]:
    def digest(job: Claimed) -> str:
        return parameters_digest(job.parameters)

    for _, same in groupby(sorted(jobs, key=digest), key=digest):
        yield list(same)


def _is_list(job: Claimed) -> bool:
    return lengths.is_list(replica.engines[job.model].spec, job.inputs)


def _items(job: Claimed) -> list[object]:
    return job.inputs if _is_list(job) else [job.inputs]


def _failed(job_id: UUID, error: errors.InferenceError, where: str = "") -> Outcome:
    """With a bounded text: it may quote the input, or be an engine's own."""
    return Outcome(job_id=job_id, error_code=error.code, error_detail=shorten(storable(f"{where}{error.message}")))


def _outcome(job: Claimed, answers: list[object]) -> Outcome:
    """A job of several items fails with its first failed item."""
    for index, answer in enumerate(answers):
        if isinstance(answer, errors.InferenceError):
            where = f"inputs[{index}]: " if _is_list(job) else ""
            if isinstance(answer, errors.JobError):
                logger.warning("job=%s model=%s %s: %s%s", job.id, job.model, answer.code, where, answer.message)
            return _failed(job.id, answer, where)
    if (held := size(answers)) > MOST_ANSWERED:
        problem = f"The answer holds about {held} numbers, at most {MOST_ANSWERED} are kept: send less in one job."
        return _failed(job.id, errors.BadOutput(problem))
    return Outcome(job_id=job.id, output=answers if _is_list(job) else answers[0])


def _record(batch: UUID, outcomes: Sequence[Outcome], batch_size: int) -> list[Outcome]:
    """All at once; or one by one when the database refuses something: then that one fails alone. Returns them as they
    were recorded."""
    try:
        _record_at_once(batch, outcomes, batch_size)
    except Exception as error:
        if is_away(error) or (len(outcomes) == 1 and outcomes[0].error_code == errors.BadOutput.code):
            raise
        logger.error("batch=%s jobs=%d not recorded, the database refuses it: %s", batch, len(outcomes), error)
        if len(outcomes) == 1:
            outcomes = [_failed(outcomes[0].job_id, errors.BadOutput("The database refused to store the answer."))]
        return [recorded for outcome in outcomes for recorded in _record(batch, [outcome], batch_size)]
    return list(outcomes)


def _record_at_once(batch: UUID, outcomes: Sequence[Outcome], batch_size: int) -> None:
    recorded = patiently(
        lambda: transitions.record(batch, outcomes, batch_size=batch_size),
        limit_s=RECORD_PATIENCE_S, reconnect=connection.close,
    )  # fmt: skip
    if dropped := len(outcomes) - recorded:
        logger.info("batch=%s %d of %d outcomes dropped: cancelled or given back", batch, dropped, len(outcomes))


def _report(
    jobs: Sequence[Claimed], outcomes: Sequence[Outcome], reports: Sequence[RunReport], *, took_s: float
) -> BatchReport:
    engine_s = sum(report.engine_s for report in reports)
    size = sum(job.size for job in jobs)
    padded = all(report.padded for report in reports)
    cut_at = next((report.cut_at for report in reports), None)
    tokens = [min(job.length, cut_at or job.length) for job in jobs]
    return BatchReport(
        errors={outcome.job_id: outcome.error_code for outcome in outcomes},
        engine_s=engine_s,
        overhead_s=took_s - engine_s,
        size=size,
        length=max(tokens) if padded else sum(job.size * own for job, own in zip(jobs, tokens, strict=True)) / size,
        cut_at=cut_at,
        padded=padded,
        calls=sum(report.calls for report in reports),
        oom_shape=next((report.oom_shape for report in reports if report.oom_shape), None),
    )
