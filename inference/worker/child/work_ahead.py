"""The loop of a child process that works ahead.

While a call computes, one thread claims, reads and tokenizes the next batch, and another one records the outcomes of
the last. Engines run in the main thread. At the time limit the alarm ends the process.

The main process gives such a child a few calls at once. Batches that are run again, to find what fails, come alone.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, NoReturn

from inference import errors
from inference.worker.calls import ReplyKind
from inference.worker.child import served_calls
from inference.worker.child.batch_run import BatchRun
from inference.worker.child.connection import ChildCall, MainConnection

logger = logging.getLogger(__name__)

SWITCH_S = 0.0001  # seconds for which another thread may keep the interpreter from an engine: less than is gained


@dataclass(slots=True, eq=False)
class AcceptedCall:
    """A call that was accepted, with what has become of it so far."""

    call: ChildCall
    stages: BatchRun | None = None
    result: Any = None
    failure: BaseException | None = None


class WorkAheadLoop:
    """The loop of a child's calls in three stages: a thread claims, the main thread computes, a thread records."""

    def __init__(self, connection: MainConnection) -> None:
        self._connection = connection
        self._taken: SimpleQueue[AcceptedCall | SystemExit] = SimpleQueue()
        self._computed: SimpleQueue[AcceptedCall | None] = SimpleQueue()
        self._device_failed = False

    def run(self) -> NoReturn:
        """Run calls until the main process wants no more, then raise `SystemExit`."""
        sys.setswitchinterval(SWITCH_S)
        threading.Thread(target=_run_or_end, args=(self._take_calls,), name="claims", daemon=True).start()
        recorder = threading.Thread(target=_run_or_end, args=(self._answer_calls,), name="records", daemon=True)
        recorder.start()
        while not isinstance(taken := self._taken.get(), SystemExit):
            self._compute_call(taken)
            self._computed.put(taken)
            if isinstance(taken.failure, (SystemExit, KeyboardInterrupt)):
                break
        if isinstance(taken, SystemExit):
            served_calls.run_open_batches_to_end()
        self._computed.put(None)
        recorder.join()
        raise taken if isinstance(taken, SystemExit) else SystemExit(os.EX_SOFTWARE)

    def _take_calls(self) -> None:
        try:
            while True:
                taken = self._take_call(self._connection.receive_call())
                self._taken.put(taken)
                if taken.stages and not taken.failure:
                    taken.stages.prepare_inputs_ahead()
        except SystemExit as end:
            self._taken.put(end)

    def _take_call(self, call: ChildCall) -> AcceptedCall:
        """Acknowledge a call and claim its batch."""
        self._connection.send(ReplyKind.ACCEPTED, call.number)
        taken = AcceptedCall(call)
        if call.function is served_calls.run_batch:
            try:
                with served_calls.raise_picklable_errors():
                    taken.stages = served_calls.make_batch_run(*call.arguments)
                    if taken.stages:
                        taken.stages.claim_jobs()
            except Exception as error:
                taken.failure = error
        return taken

    def _compute_call(self, taken: AcceptedCall) -> None:
        _, function, arguments = taken.call
        try:
            if function is not served_calls.run_batch:
                taken.result = function(*arguments)
                return
            with served_calls.raise_picklable_errors(), served_calls.run_beside_open_batches(*arguments):
                if taken.failure:
                    return
                if self._device_failed:
                    raise errors.NotYet("the device failed in the process that was to run it.")
                if taken.stages:
                    taken.stages.compute_answers(is_prepared=True)
                else:
                    taken.result = served_calls.continue_batch(*arguments)
        except BaseException as error:
            self._device_failed |= isinstance(error, errors.DeviceFailed)
            taken.failure = error

    def _answer_calls(self) -> None:
        while taken := self._computed.get():
            if taken.stages and not taken.failure:
                try:
                    with served_calls.raise_picklable_errors():
                        taken.result = taken.stages.record_outcomes()
                except Exception as error:
                    taken.failure = error
            self._connection.send_result(taken.call.number, taken.result, taken.failure)


def _run_or_end(work: Callable[[], None]) -> None:
    """Run `work`, and end this process if it raises.

    No other thread would replace the one that has ended, and this process would take calls and answer none.
    """
    try:
        work()
    except BaseException:
        logger.exception("the process ends, a thread of it has")
        os._exit(os.EX_SOFTWARE)
