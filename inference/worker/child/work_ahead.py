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
from time import monotonic
from typing import Any, NoReturn

from billiard.common import terminate_handler_fired  # type: ignore[attr-defined]  # its stubs are older
from billiard.einfo import ExceptionInfo
from billiard.pool import ACK, READY

from inference import errors
from inference.worker.child import entry
from inference.worker.child.batch_run import BatchRun
from inference.worker.child.multi_batch_run import MultiBatchRun

logger = logging.getLogger(__name__)

SWITCH_S = 0.0001  # seconds for which another thread may keep the interpreter from an engine: less than is gained


@dataclass(slots=True, eq=False)
class AcceptedCall:
    """A call that was read from the pipe."""

    id: tuple[int, Any]  # the pool's number of the call, and of its part
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    stages: BatchRun | MultiBatchRun | None = None
    result: Any = None
    failure: ExceptionInfo | None = None


class WorkAhead:
    """The loop that takes calls from the main process, runs them and answers them.

    `receive` waits for a call, and raises `SystemExit` if there will be none. `send` sends an answer to the main
    process. `inbox` is the main process's number of the pipe to this child, by which an answer names the child.
    """

    def __init__(self, receive: Callable[[], Any], send: Callable[[Any], None], inbox: int) -> None:
        self._receive, self._send_unlocked, self._inbox = receive, send, inbox
        self._taken: SimpleQueue[AcceptedCall | SystemExit] = SimpleQueue()
        self._computed: SimpleQueue[AcceptedCall | None] = SimpleQueue()
        self._sending = threading.Lock()
        self._device_failed = False

    def run(self) -> NoReturn:
        """Run calls until the main process wants no more, then raise `SystemExit`."""
        sys.setswitchinterval(SWITCH_S)
        threading.Thread(target=_or_end, args=(self._take_all,), name="claims", daemon=True).start()
        recorder = threading.Thread(target=_or_end, args=(self._settle_all,), name="records", daemon=True)
        recorder.start()
        try:
            while not isinstance(taken := self._taken.get(), SystemExit):
                self._compute(taken)
                self._computed.put(taken)
                if taken.failure and taken.failure.type in (SystemExit, KeyboardInterrupt):
                    break
            if isinstance(taken, SystemExit):
                entry.run_to_the_end()
            self._computed.put(None)
            recorder.join()
            raise taken if isinstance(taken, SystemExit) else SystemExit(os.EX_SOFTWARE)
        finally:
            self._sending.acquire(timeout=1.0)  # the pool's last message must not mix with one that is being sent

    def _send(self, kind: int, *values: Any) -> None:
        with self._sending:
            self._send_unlocked((kind, values))

    def _take_all(self) -> None:
        try:
            while True:
                if request := self._receive():
                    taken = self._take(request)
                    self._taken.put(taken)
                    if taken.stages and not taken.failure:
                        taken.stages.prepare()
        except SystemExit as end:
            self._taken.put(end)

    def _take(self, request: Any) -> AcceptedCall:
        """Acknowledge a call and claim its batch."""
        _, (job, part, function, arguments, _) = request
        self._send(ACK, job, part, monotonic(), os.getpid(), None)
        taken = AcceptedCall((job, part), function, arguments)
        if function is entry.run_batch:
            try:
                with entry.picklable_errors():
                    taken.stages = entry.stages_of(*arguments)
                    if taken.stages:
                        taken.stages.claim()
            except Exception:
                taken.failure = ExceptionInfo()
        return taken

    def _compute(self, taken: AcceptedCall) -> None:
        try:
            if taken.function is not entry.run_batch:
                taken.result = taken.function(*taken.arguments)
                return
            with entry.picklable_errors(), entry.run_beside_open_batches(*taken.arguments):
                if taken.failure:
                    return
                if self._device_failed:
                    raise errors.NotYet("the device failed in the process that was to run it.")
                if taken.stages:
                    taken.stages.compute(is_prepared=True)
                else:
                    taken.result = entry.steps_of(*taken.arguments)
        except BaseException as error:
            if terminate_handler_fired():  # this process got a signal to end, and the call did not fail
                raise
            self._device_failed |= isinstance(error, errors.DeviceFailed)
            taken.failure = ExceptionInfo()

    def _settle_all(self) -> None:
        while taken := self._computed.get():
            if taken.stages and not taken.failure:
                try:
                    with entry.picklable_errors():
                        taken.result = taken.stages.record()
                except Exception:
                    taken.failure = ExceptionInfo()
            try:
                self._send(READY, *taken.id, (not taken.failure, taken.failure or taken.result), self._inbox)
            except Exception:  # such as a result that cannot be pickled
                self._send(READY, *taken.id, (False, ExceptionInfo()), self._inbox)


def _or_end(work: Callable[[], None]) -> None:
    """Run `work`, and end this process if it raises.

    No other thread would replace the one that has ended, and this process would take calls and answer none.
    """
    try:
        work()
    except BaseException:
        logger.exception("the process ends, a thread of it has")
        os._exit(os.EX_SOFTWARE)
