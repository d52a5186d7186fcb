"""The time limit that a child process sets itself while its engine runs."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def end_process_after(limit_s: float) -> Iterator[None]:
    """Make this process print its stacks and die if the block runs longer than `limit_s`.

    That also works while a C call of the engine holds the interpreter or receives no signal, as another thread receives
    it. Waits for the database do not count.

    faulthandler's own timer would start and end a thread for each call, which takes 0.3 ms instead of 4 µs.
    """
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
