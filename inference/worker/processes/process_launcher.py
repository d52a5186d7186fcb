"""The start of child processes, by forks of one process that has imported what they need, and their end.

A replica is there in a fraction of a second, also after a crash, and replicas share the memory of the libraries. The
process that forks is that of `multiprocessing`'s start method "forkserver". Only `inference.worker.processes.preload`
in it is this project's. It has one thread and no connection, and has computed nothing: what does not survive a fork is
not there yet.
"""

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from inference.catalog.specs import ModelSpec

logger = logging.getLogger(__name__)

IMPORTS = "FORKSERVER_IMPORTS"  # environment variable: names of modules, with spaces between them
ENDS_S = 0.1  # seconds until a process that answers no more counts as ended
LEAVES_S = 5.0  # seconds for a process that has closed its connection to end, after which it is killed
STOPS_S = 5.0  # seconds that a stop waits for what the launcher does; a start may wait for imports of minutes
SPARE = 8  # file descriptors that a start opens: it would leave some open, and a child that waits, if it got too few
UNKNOWN = 255  # exit code of each child whose process that forks has ended

Result = TypeVar("Result")


def start_fork_server(specs: Iterable[ModelSpec]) -> None:
    """Start the process that forks, so that it imports while this process gets ready itself.

    A user's own engine is imported by the children, as it is not known what its module does.
    """
    modules = {spec.engine.partition(":")[0] for spec in specs if spec.is_built_in}
    os.environ[IMPORTS] = " ".join(sorted(modules))
    multiprocessing.set_forkserver_preload(["inference.worker.processes.preload"])
    forkserver.ensure_running()


class ProcessLauncher:
    """The thread that starts child processes and learns how they ended.

    Both can block: a start may wait for the process that forks to import torch. No other thread may touch the process
    objects, as two that ask for an exit code at the same time can each read half of the answer. The event loop reads
    `fileno`, and calls `deliver_results`.
    """

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._results: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._news, self._write_news = os.pipe()
        os.set_blocking(self._news, False)
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run_tasks, name="launcher", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        return self._news

    def start_process(
        self,
        function: Callable[..., object],
        arguments: tuple[Any, ...],
        then: Callable[[BaseProcess | Exception], object],
    ) -> None:
        """Start a process that calls `function`, and pass it, or the error, to `then`."""
        self._run_in_thread(lambda: self._start_process(function, arguments), then)

    def call_on_exit(self, process: BaseProcess, then: Callable[[int | None], object]) -> None:
        """Wait until a process has ended, and pass its exit code to `then`; None if the code is not known.

        A process that does not end soon is killed.
        """
        self._run_in_thread(lambda: _reap_process(process), then)

    def request_exit_code(self, process: BaseProcess, then: Callable[[int | None], object]) -> None:
        """Pass the exit code of a process to `then`; None if it has not ended, or if the code is not known.

        If the process that forks has ended, another one begins its imports now.
        """
        self._run_in_thread(lambda: _poll_process(process), then)

    def deliver_results(self) -> None:
        """Call what waits for results, in the thread of the event loop."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._news, 4096)
        with contextlib.suppress(Empty):
            while True:
                self._results.get_nowait()()

    def stop_thread(self) -> None:
        """End the thread after what it was given so far, and deliver the last results. A second call does nothing.

        A start that takes longer is left to itself: its process ends with this one.
        """
        if self._is_stopped:
            return
        self._is_stopped = True
        self._tasks.put(None)
        self._thread.join(STOPS_S)
        self.deliver_results()
        if self._thread.is_alive():
            return
        os.close(self._news)
        os.close(self._write_news)

    def _run_in_thread(self, task: Callable[[], Result], then: Callable[[Result], object]) -> None:
        def run() -> None:
            result = task()
            self._results.put(lambda: then(result))

        self._tasks.put(run)

    def _run_tasks(self) -> None:
        while task := self._tasks.get():
            try:
                task()
            except Exception:  # a bug: without this thread no child would be started again
                logger.exception("the launcher failed")
            os.write(self._write_news, b"\0")

    def _start_process(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> BaseProcess | Exception:
        error: Exception = RuntimeError("not started")
        for _ in range(2):
            try:
                self._require_spare_descriptors()
                process: BaseProcess = self._context.Process(target=function, args=arguments)
                process.start()
            except (ConnectionError, EOFError) as ended:  # the process that forks has ended: try again by another one
                logger.error("the process that replicas are forked from has ended, another one is started: %r", ended)
                error = ended.with_traceback(None)  # which would keep file descriptors open
                time.sleep(ENDS_S)
            except Exception as refused:
                return refused.with_traceback(None)
            else:
                return process
        return error

    def _require_spare_descriptors(self) -> None:
        """Raise `OSError` if this process may open too few file descriptors for a start."""
        spare: list[int] = []
        try:
            while len(spare) < SPARE:
                spare.append(os.dup(self._news))
        finally:
            for descriptor in spare:
                os.close(descriptor)


def _reap_process(process: BaseProcess) -> int | None:
    process.join(LEAVES_S)
    if process.exitcode is None and process.pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.join(LEAVES_S)
    exit_code = process.exitcode
    if exit_code is not None:
        process.close()
    return _drop_unknown_code(exit_code)


def _poll_process(process: BaseProcess) -> int | None:
    process.join(ENDS_S)  # its pipes are closed a moment before its exit code is known
    if (exit_code := process.exitcode) == UNKNOWN:
        time.sleep(ENDS_S)  # it is still there for a moment after its pipes are closed
        with contextlib.suppress(Exception):  # else the next start makes one
            forkserver.ensure_running()
    return _drop_unknown_code(exit_code)


def _drop_unknown_code(exit_code: int | None) -> int | None:
    return None if exit_code == UNKNOWN else exit_code
