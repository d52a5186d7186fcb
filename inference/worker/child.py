"""What a pool child does: claim, run, record, notify. The only place where torch and the engines are."""

import faulthandler
import gc
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import groupby

from celery.utils.log import current_process_index

from inference import errors, failpoints
from inference.catalog import lengths
from inference.catalog.specs import ModelSpec, parameters_digest
from inference.engines.isolate import RunReport
from inference.engines.isolate import run as run_engine
from inference.store.transitions import Claimed, Outcome
from inference.worker import claims
from inference.worker.calls import PAST_ITS_LIMIT, Asked, BatchCall, BatchReport, Loaded, Order, Shared
from inference.worker.deadline import limited
from inference.worker.devices import Plan
from inference.worker.loaded import LoadedModels
from inference.worker.opened import OpenBatches
from inference.worker.outcomes import condemned, failed, outcome_of

replica: LoadedModels
opened = OpenBatches()


def start(plan: Plan, order: Order, shared: Shared) -> Loaded:
    """Bind the device, load and warm up the models. Runs once, before the child takes calls."""
    global replica  # noqa: PLW0603 - of this process
    # The main process asks for the stack before it kills.
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
    faulthandler.register(PAST_ITS_LIMIT, file=2, all_threads=True, chain=True)
    threading.Thread(target=threading.Event().wait, name="hears-signals", daemon=True).start()
    gc.collect()
    gc.freeze()  # what is imported stays: to look for garbage in it takes longer than to load a small model
    device = plan.bind(current_process_index(base=0) or 0)
    replica = LoadedModels(worker=plan.worker, device=device, shared=shared)
    return have(order)


def have(order: Order) -> Loaded:
    """Unload what is not in the order, then load what is new in it. No batch is open: what is left of one is let go."""
    opened.close()
    return replica.have(order)


def run_batch(call: BatchCall) -> BatchReport:
    """Run one batch from claim to notice; of a model that generates step by step, some steps of it. After the last call
    before this process ends those that are still open go on to their end."""
    opened.only(call.waiting, call=call)
    try:
        return _run_batch(call)
    finally:
        if replica.shared.asked == Asked.TO_THE_END:
            opened.run_to_the_end()


def _run_batch(call: BatchCall) -> BatchReport:
    started = time.monotonic()
    spec = replica.specs.get(call.digest)
    if not call.verdict and spec is None:
        raise errors.ModelUnavailable(f"{call.model} is not loaded in the process that was to run it.")
    if call.goes_on and call.batch not in opened.batches:
        raise errors.NotYet(f"batch {call.batch} is not open in the process that was to go on with it.")
    stepper = replica.engine(spec).stepper if spec and not call.verdict else None
    if spec and stepper is not None:
        return opened.run(call, spec, stepper, _claim, lambda: replica.shared.asked)
    jobs = _claim(call)
    if not jobs:
        return BatchReport(errors={})
    reports: list[RunReport] = []
    if call.verdict or spec is None:
        outcomes = [condemned(job, call.verdict) for job in jobs]
    else:
        failpoints.reach("before_run")
        outcomes, reports = _run(spec, jobs, is_last=call.is_last)
        failpoints.reach("after_run")
    outcomes = claims.record(call.batch, outcomes, batch_size=sum(job.size for job in jobs))
    return _report(jobs, outcomes, reports, took_s=time.monotonic() - started)


def _claim(call: BatchCall) -> list[Claimed]:
    failpoints.reach("before_claim")
    jobs = claims.claim(call, worker=replica.worker, device=replica.device) if call.job_ids else []
    failpoints.reach("after_claim")
    return jobs


def _run(spec: ModelSpec, jobs: Sequence[Claimed], *, is_last: bool) -> tuple[list[Outcome], list[RunReport]]:
    """One engine call a set of parameters; the messages already grouped them, so there is one set.

    Raises `NotYet` for jobs that were accepted by a newer entry of the model."""
    outcomes: list[Outcome] = []
    reports: list[RunReport] = []
    engine = replica.engine(spec)
    engine.spec = spec  # of the entries that share it
    for same in _by_parameters(jobs):
        try:
            parameters = claims.parameters_of(spec, same[0], is_last=is_last)
        except errors.InvalidInput as error:
            outcomes += [failed(job, error) for job in same]
            continue
        items = [item for job in same for item in lengths.items(spec, job.inputs)]
        with limited(spec.time_limit_s):
            report = run_engine(engine, items, parameters)
        reports.append(report)
        answers = iter(report.outcomes)
        outcomes += [outcome_of(spec, job, [next(answers) for _ in lengths.items(spec, job.inputs)]) for job in same]
    return outcomes, reports


def _by_parameters(jobs: Sequence[Claimed]) -> Iterator[list[Claimed]]:
    def digest(job: Claimed) -> str:
        return parameters_digest(job.parameters)

    for _, same in groupby(sorted(jobs, key=digest), key=digest):
        yield list(same)


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
