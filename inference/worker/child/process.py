"""The life of a child process, from its start to its last call."""

import contextlib
import fcntl
import functools
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import NoReturn

from django.conf import settings

from inference.telemetry import logs, tracing
from inference.worker.calls import Assignment, LoadReport, ReplyKind, map_shared_state
from inference.worker.child import served_calls
from inference.worker.child.connection import ChildCall, MainConnection
from inference.worker.child.work_ahead import WorkAheadLoop
from inference.worker.replicas.devices import NO_GPUS, Plan

logger = logging.getLogger(__name__)

# A whole process group gets these signals, and the main process has its batches end first.
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Seconds without a message between two loads, after which the event loop of the main process is taken to stand, as it
# does while the broker is away.
PATIENCE_S = 10.0


def run_replica(
    end: socket.socket, index: int, plan: Plan, assignment: Assignment, environment: Mapping[str, str], log_level: int
) -> None:
    """Load what a replica is to serve, and run the calls of the main process until it wants no more.

    The first message on the connection is the file descriptor of the shared memory.
    """
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)
    end_with_main_process()
    for name in NO_GPUS:
        os.environ.pop(name, None)
    os.environ.update(environment)
    logs.configure(settings.LOGGING)
    logging.getLogger().setLevel(log_level)
    _, (descriptor,), _, _ = socket.recv_fds(end, 1, 1)
    shared = map_shared_state(descriptor)
    os.close(descriptor)
    connection = MainConnection(end)
    code: object = os.EX_SOFTWARE
    try:
        run_first_calls = functools.partial(run_calls_before_load, connection)
        report = served_calls.start_replica(plan, index, assignment, shared, run_first_calls)
        connection.send(ReplyKind.UP, value=report)
        run_loop(connection, plan, index)
    except SystemExit as ended:
        code = ended.code
    except Exception:
        logger.exception("the process of replica %d ends", index)
    if tracing.on:
        tracing.flush_spans()
    with contextlib.suppress(OSError):  # the main process is gone
        connection.send(ReplyKind.LEAVING)
    exit_process(code)


def exit_process(code: object) -> NoReturn:
    """End this process, also if an engine has left threads that Python would wait for."""
    own = threading.main_thread()
    if any(not thread.daemon and thread is not own for thread in threading.enumerate()):
        for process in multiprocessing.active_children():
            process.terminate()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else os.EX_OK if code is None else 1)
    sys.exit(code)  # type: ignore[arg-type]  # a status or a text, as sys.exit takes


def end_with_main_process() -> None:
    """Have the kernel kill this process as soon as the main process has ended, also while an engine computes.

    The main process holds the other end of the pipe. Where the kernel cannot do this, the process ends before its next
    call.
    """
    parent = multiprocessing.parent_process()
    if parent is None or not hasattr(fcntl, "F_SETSIG"):
        return
    pipe = parent.sentinel
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if multiprocessing.connection.wait([pipe], timeout=0):
        os._exit(os.EX_SOFTWARE)  # it ended before this was set


def run_loop(connection: MainConnection, plan: Plan, index: int) -> NoReturn:
    """Run calls, ahead of the engine where the replica's device gains by it, until the main process wants no more."""
    if plan.works_ahead(index):
        WorkAheadLoop(connection).run()
    run_calls(connection)


def run_calls_before_load(connection: MainConnection, loaded: LoadReport) -> None:
    """Report what is loaded so far, and run calls until the main process has the next model loaded.

    All models are loaded without a pause once the main process has said nothing after a load, but no load begins while
    a batch is open. Raises `SystemExit` if the main process wants no more.
    """
    if connection.is_silent:
        return
    connection.send(ReplyKind.LOADED, value=loaded)
    with run_open_batches_at_exit():
        while call := connection.receive_call_before_load(None if served_calls.opened.batches else PATIENCE_S):
            run_call(connection, call)


def run_calls(connection: MainConnection) -> NoReturn:
    """Run one call after the other until the main process wants no more, then raise `SystemExit`."""
    with run_open_batches_at_exit():
        while True:
            run_call(connection, connection.receive_call())


@contextlib.contextmanager
def run_open_batches_at_exit() -> Iterator[None]:
    """Run the batches that are still open to their end if the block raises `SystemExit`."""
    try:
        yield
    except SystemExit:
        served_calls.run_open_batches_to_end()
        raise


def run_call(connection: MainConnection, call: ChildCall) -> None:
    connection.send(ReplyKind.ACCEPTED, call.number)
    try:
        result = call.function(*call.arguments)
    except Exception as error:
        connection.send_result(call.number, None, error)
    else:
        connection.send_result(call.number, result)
