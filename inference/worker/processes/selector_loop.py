"""The event loop that calls the pool: kombu's while the worker runs, and one of `selectors` while it leaves."""

import selectors
from collections.abc import Callable
from typing import Any, Protocol


class HasFileno(Protocol):
    """An object with a file descriptor, such as a socket."""

    def fileno(self) -> int: ...


FileObject = int | HasFileno  # as `selectors` takes it


class EventLoop(Protocol):
    """The methods of kombu's event loop that the pool calls."""

    def add_reader(self, fds: FileObject, callback: Callable[..., object], *args: Any) -> object: ...

    def add_writer(self, fds: FileObject, callback: Callable[..., object], *args: Any) -> object: ...

    def remove(self, fd: FileObject) -> object: ...


class SelectorLoop:
    """An event loop for the time when the worker's own loop turns no more."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def add_reader(self, fds: FileObject, callback: Callable[..., object], *args: Any) -> None:
        self.remove(fds)
        self._selector.register(fds, selectors.EVENT_READ, (callback, args))

    def add_writer(self, fds: FileObject, callback: Callable[..., object], *args: Any) -> None:
        self.remove(fds)
        self._selector.register(fds, selectors.EVENT_WRITE, (callback, args))

    def remove(self, fd: FileObject) -> None:
        try:
            self._selector.unregister(fd)
        except KeyError:
            return

    def run_one_turn(self, longest_s: float) -> None:
        for key, _ in self._selector.select(longest_s):
            if key.fd in self._selector.get_map():  # no callback before has removed it
                callback, arguments = key.data
                callback(*arguments)
