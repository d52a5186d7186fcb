"""One child process of the pool, as the main process sees it."""

import contextlib
import ctypes
import math
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

from inference.engines.artifacts import memory
from inference.worker import framing
from inference.worker.calls import ProcessLost, SharedState, map_shared_state

CHUNK = 2**16  # bytes that are read at once
LEAVES_S = 10.0  # seconds for a child that runs nothing any more to end
LOADS_S = 1.0  # seconds of loads, after which a child that starts takes calls before its next load
FIRST_MESSAGES_S = 0.1  # seconds for the first messages of the models that it has loaded to come


@dataclass(slots=True, eq=False)
class ProcessCall:
    """A call that was sent to a child process. The pool calls back in the thread of the event loop."""

    number: int
    pid: int  # of the child
    done: Callable[[Any], object]
    failed: Callable[[BaseException], object]
    accepted: Callable[[int], object] | None = None
    is_accepted: bool = False  # the child has begun it
    is_over: bool = False  # it is answered, or lost with its child

    def note_acceptance(self) -> None:
        self.is_accepted = True
        if self.accepted:
            self.accepted(self.pid)

    def note_result(self, result: Any) -> None:
        self.is_over = True
        self.done(result)

    def report_error(self, error: BaseException) -> None:
        self.is_over = True
        self.failed(error)

    def note_end_of_child(self, exit_code: int | None) -> None:
        """Note that the child has ended. A call that it had not begun is forgotten."""
        self.is_over = True
        if self.is_accepted:
            self.failed(ProcessLost(exit_code))


class ReplicaProcess:
    """The connection to a child process, the memory shared with it, and its calls that are not over."""

    process: BaseProcess
    pid = 0

    def __init__(self, index: int) -> None:
        """Make the connection and the memory, before the process is started. Raises `OSError`."""
        self.index = index
        self.calls: dict[int, ProcessCall] = {}
        self.calls_made = 0
        self.started_at = math.inf  # monotonic
        self.is_up = False  # it has loaded what it can, and takes calls
        self.is_between_loads = False  # it starts, and takes calls before it loads its next model
        self.load_began_at = math.inf  # monotonic: when it began to load, after its start or its last calls
        self.loaded_at = math.inf  # monotonic: when it had loaded something, and began to take calls
        self.consumed_at: float | None = None  # monotonic: since when its queues are consumed, between two loads
        self.is_given_up = False  # it must not be given another call
        self.is_worn = False  # it has run as many calls, or has as much memory, as it may
        self.is_closed = False  # its end of the connection is closed: it has ended, or ends now
        self.is_orphan = False  # the process that forked it has ended, and nothing tells how this one will end
        self.is_awaited = False  # the launcher waits for its end
        self.leaves_by: float | None = None  # monotonic: when it must have ended, which it said that it does
        self.unsent = bytearray()  # what the connection had no room for
        self._unpacker = framing.Unpacker()
        self.connection, self.other_end = socket.socketpair()
        try:
            self.connection.setblocking(False)
            self.writer = self.connection.dup()  # kombu's event loop has either a reader or a writer of a descriptor
            with _open_memory() as descriptor:
                socket.send_fds(self.connection, [b"\0"], [descriptor])
                self.shared = map_shared_state(descriptor)
        except OSError:
            self.close()
            raise

    def note_process_start(self, process: BaseProcess) -> None:
        self.process, self.pid = process, process.pid or 0
        self.started_at = self.load_began_at = time.monotonic()
        self.other_end.close()

    @property
    def is_starting(self) -> bool:
        """True if it loads its first models, and begins no call meanwhile."""
        return not (self.is_up or self.is_between_loads)

    @property
    def has_loaded_for_long(self) -> bool:
        """True if it has loaded models for so long that calls between two loads delay its start by little."""
        return time.monotonic() >= self.load_began_at + LOADS_S

    def note_load(self) -> None:
        """Note that it has loaded a model and takes calls before it loads the next one."""
        self.is_between_loads, self.loaded_at, self.consumed_at = True, time.monotonic(), None

    def note_consumed_queues(self) -> None:
        """Note that the queues of what it has loaded are consumed, so that the first messages may come."""
        self.consumed_at = time.monotonic()

    def has_run_calls_for(self, least_s: float) -> bool:
        """Return True if it is between two loads, and its queues have been consumed for `least_s` seconds."""
        return self.consumed_at is not None and time.monotonic() >= self.consumed_at + least_s

    @property
    def has_taken_its_calls(self) -> bool:
        """True if it has taken calls between two loads for as long as the loads before took."""
        return self.has_run_calls_for(self.loaded_at - self.load_began_at)

    def note_next_load(self) -> float:
        """Note that it loads its next model. Return the seconds of calls before, which do not count for its start."""
        self.is_between_loads, self.load_began_at, self.consumed_at = False, time.monotonic(), None
        after_s = self.load_began_at - self.loaded_at
        self.started_at += after_s
        return after_s

    def note_up(self) -> None:
        """Note that it has loaded what it can."""
        self.is_up, self.is_between_loads, self.consumed_at = True, False, None

    def note_leaving(self) -> None:
        """Note that it runs nothing any more, and ends soon."""
        self.leaves_by = time.monotonic() + LEAVES_S

    def note_closed(self) -> None:
        """Note that nothing more is read from it."""
        self.is_closed = True

    def note_exit_wait(self) -> None:
        """Note that the launcher waits for its end."""
        self.is_awaited = True

    def note_if_orphan(self, exit_code: int | None) -> None:
        """Note if it is an orphan.

        Its exit code is None then, as the process that forked it has ended, and nothing tells how this one will end.
        """
        self.is_orphan = exit_code is None

    def note_suspension(self, suspended_s: float) -> None:
        """Exclude seconds in which it was stopped with the main process."""
        self.started_at += suspended_s
        now = time.monotonic()
        self.load_began_at = min(now, self.load_began_at + suspended_s)
        self.loaded_at = min(now, self.loaded_at + suspended_s)

    def count_finished_call(self, *, most_calls: int | None, most_kib: int | None) -> None:
        """Note that it has run a call. It is worn once it has run as many, or takes as much memory, as it may.

        The calls between two of its first loads do not count: it would be replaced before it has loaded all.
        """
        if not self.is_up:
            return
        self.calls_made += 1
        if (most_calls and self.calls_made >= most_calls) or (
            most_kib and (memory.read_resident_bytes(self.pid) or 0) // 1024 > most_kib
        ):
            self.is_worn = True

    def stop_sending_calls(self) -> None:
        """Give it no other call: it ends, or is ended."""
        self.is_given_up = True

    def send_call(self, *message: Any) -> None:
        """Send a call, or without arguments the message that no more will follow."""
        self.unsent += framing.pack_message(message)
        self.write_unsent_bytes()

    def write_unsent_bytes(self) -> None:
        """Write what the connection has room for. The rest stays in `unsent`."""
        with contextlib.suppress(BlockingIOError, ConnectionError):  # a lost connection is noticed by its reader
            while self.unsent:
                del self.unsent[: self.writer.send(self.unsent)]

    def read_messages(self) -> Iterator[framing.Message]:
        """Yield the messages that have come. Sets `is_closed` at the end of the connection.

        Raises the error of a message that cannot be read.
        """
        while True:
            try:
                data = self.connection.recv(CHUNK)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if not data:
                self.is_closed = True
                return
            yield from self._unpacker.unpack_messages(data)
            if len(data) < CHUNK:
                return

    @property
    def exists(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except OSError:
            return False
        return True

    def kill(self) -> None:
        if self.pid and not self.is_closed:
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        for end in (self.connection, self.other_end, getattr(self, "writer", None)):
            if end:
                end.close()


@contextlib.contextmanager
def _open_memory() -> Iterator[int]:
    """Yield the file descriptor of new memory that holds a `SharedState` of zeros, and close the descriptor."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("replica")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.truncate(descriptor, ctypes.sizeof(SharedState))
        yield descriptor
    finally:
        os.close(descriptor)
