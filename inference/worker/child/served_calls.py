"""The calls that a child process serves: it claims, runs and records batches, and sends the notices.

Torch and the engines are in child processes only.
"""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

from inference import errors
from inference.engines.runtime.exception_diagnosis import describe_exception
from inference.telemetry import logs
from inference.telemetry.exception_descriptions import format_places
from inference.worker.calls import (
    PAST_ITS_LIMIT,
    Assignment,
    BatchCall,
    BatchReport,
    ChildCommand,
    LoadReport,
    RemoteError,
    SharedState,
)
from inference.worker.child.batch_run import BatchRun
from inference.worker.child.generation.open_batches import OpenBatches
from inference.worker.child.loaded_models import LoadedModels
from inference.worker.replicas.devices import Plan

replica: LoadedModels
opened = OpenBatches()


@contextlib.contextmanager
def raise_picklable_errors() -> Iterator[None]:
    """Raise what the block raises as an exception that the main process can read.

    The exception crosses the pipe. One that cannot be unpickled there would end the main process.
    """
    try:
        yield
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        if type(error).__module__ == errors.__name__:
            raise
        raise RemoteError(logs.describe_error(error), describe_exception(error), format_places(error)).with_traceback(
            error.__traceback__
        ) from None


def start_replica(
    plan: Plan,
    index: int,
    assignment: Assignment,
    shared: SharedState,
    before_next_load: Callable[[LoadReport], None],
) -> LoadReport:
    """Bind the device of replica `index`, load and warm up its models. Runs once.

    `before_next_load` is called between two of the loads, with the report so far.
    """
    global replica  # noqa: PLW0603 - of this process
    # The main process asks for the stack with SIGUSR2 before it kills this process.
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
    faulthandler.register(PAST_ITS_LIMIT, file=2, all_threads=True, chain=True)
    threading.Thread(target=threading.Event().wait, name="hears-signals", daemon=True).start()
    logs.bind_process_ids(worker=plan.worker)
    device = plan.bind_device(index)
    replica = LoadedModels(
        worker=plan.worker,
        device=device,
        host_device=plan.get_device(index),
        sharing=plan.most_replicas_per_device,
        shared=shared,
    )
    return replica.apply_assignment(assignment, before_next_load)


@raise_picklable_errors()
def apply_assignment(assignment: Assignment) -> LoadReport:
    """Unload the models that are not in the assignment, then load those that are new in it.

    No batch is open here as an assignment comes. What is left of one is closed.
    """
    opened.close_all()
    return replica.apply_assignment(assignment)


@raise_picklable_errors()
def run_batch(call: BatchCall) -> BatchReport:
    """Run one batch from claim to notice, or some steps of it if its model generates step by step."""
    with run_beside_open_batches(call), use_spare_threads(call.spare_threads):
        if stages := make_batch_run(call):
            stages.claim_jobs()
            stages.compute_answers()
            return stages.record_outcomes()
        return continue_batch(call)


@contextlib.contextmanager
def use_spare_threads(count: int) -> Iterator[None]:
    """Have torch compute with `count` more threads in the block, unless an engine has set their number itself."""
    torch = sys.modules.get("torch") if count else None
    own = torch.get_num_threads() if torch else 0
    if torch is None or str(own) != os.environ.get("OMP_NUM_THREADS"):
        yield
        return
    torch.set_num_threads(own + count)
    try:
        yield
    finally:
        torch.set_num_threads(own)


def make_batch_run(call: BatchCall) -> BatchRun | None:
    """Return the run of a batch, or None if its model generates step by step.

    Raises `ModelUnavailable` if the model is not loaded here, and `NotYet` if the batch should be open here and is not.
    """
    spec = replica.specs.get(call.digest)
    if not call.verdict and spec is None:
        raise errors.ModelUnavailable(f"{call.model} is not loaded in the process that was to run it.")
    if call.goes_on and call.batch not in opened.batches:
        raise errors.NotYet(f"batch {call.batch} is not open in the process that was to go on with it.")
    if spec and not call.verdict and replica.get_engine(spec).stepper is not None:
        return None
    return BatchRun(call, spec, replica)


def continue_batch(call: BatchCall) -> BatchReport:
    """Run the next steps of a batch whose model generates step by step."""
    with logs.bind_ids(batch=call.batch, model=call.model):
        return opened.continue_batch(call, replica)


@contextlib.contextmanager
def run_beside_open_batches(call: BatchCall) -> Iterator[None]:
    """Run a call beside the batches that are open, and if it is the last call, run these to their end."""
    opened.close_abandoned_batches(call.waiting, call=call)
    try:
        yield
    finally:
        run_open_batches_to_end()


def run_open_batches_to_end() -> None:
    """Run the batches that are still open to their end if the worker leaves, as no call of theirs follows.

    The pool takes no more calls once it is told to stop, not even for a batch that was between two calls.
    """
    if replica.shared.command == ChildCommand.DRAIN:
        opened.run_all_to_end()
