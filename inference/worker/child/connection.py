"""A child process's end of the connection to the worker's main process."""

import multiprocessing.connection
import os
import socket
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from inference.engines.runtime.exception_diagnosis import describe_exception
from inference.telemetry import logs
from inference.worker import framing
from inference.worker.calls import LOAD_NEXT, RemoteError, ReplyKind


class ChildCall(NamedTuple):
    """A call that was read from the connection."""

    number: int  # of the main process
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class MainConnection:
    """The connection to the main process. One thread receives from it, and several may send."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._stream = connection.makefile("rb", buffering=0)  # nothing is read ahead of `wait`
        self._sending = threading.Lock()
        self.is_silent = False  # the main process said nothing after a load, as its event loop stands

    def receive_call(self) -> ChildCall:
        """Wait for the next call and return it. Raises `SystemExit` if none will follow."""
        while (call := self._receive_message()) is None:
            pass  # it came late, as the models were loaded without it
        return call

    def receive_call_before_load(self, patience_s: float | None) -> ChildCall | None:
        """Wait for the next call and return it, or None once the next model is to be loaded.

        After `patience_s` seconds without a message all models are to be loaded, and the main process is told so.
        Raises `SystemExit` if no call will follow.
        """
        if multiprocessing.connection.wait([self._socket], patience_s):
            return self._receive_message()
        self.is_silent = True
        self.send(ReplyKind.LOADING)
        return None

    def _receive_message(self) -> ChildCall | None:
        """Wait for the next message and return its call, or None for `LOAD_NEXT`."""
        try:
            message = framing.read_message(self._stream)
        except (EOFError, OSError):
            raise SystemExit(os.EX_SOFTWARE) from None  # the main process is gone
        if not message:
            raise SystemExit(os.EX_OK)
        return None if message == LOAD_NEXT else ChildCall(*message)

    def send(self, kind: ReplyKind, number: int = 0, value: object = None) -> None:
        data = framing.pack_message((kind, number, value))
        with self._sending:
            self._socket.sendall(data)

    def send_result(self, number: int, result: object, error: BaseException | None = None) -> None:
        """Send the result of a call, or the error that it raised."""
        try:
            self.send(ReplyKind.FAILED if error else ReplyKind.DONE, number, error or result)
        except OSError:
            raise SystemExit(os.EX_SOFTWARE) from None  # the main process is gone
        except Exception as unsendable:  # such as a result that cannot be pickled
            self.send(
                ReplyKind.FAILED, number, RemoteError(logs.describe_error(unsendable), describe_exception(unsendable))
            )
