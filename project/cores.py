"""The choice of a web process's CPU cores: one core while it computes much, any core while it waits for models.

Only one thread at a time holds Python's lock. On one core it finds its data in that core's cache, which saves a fifth
of the CPU of a request. Where replicas compute on the same cores, however, a process that needs little of its core has
to wait for it, and short texts take 5 to 20 % longer.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

LOOK_S = 5.0
BUSY = 0.5  # share of a core that a process uses; above it the process is kept on one core


class Cores:
    """The cores of this process. Processes that run side by side have different cores of their own."""

    def __init__(self) -> None:
        self.all = os.sched_getaffinity(0)
        self.own = {sorted(self.all)[os.getpid() % len(self.all)]}
        self._seen = time.process_time(), time.monotonic()

    def follow_load(self) -> None:
        while True:
            time.sleep(LOOK_S)
            self.choose_cores()

    def choose_cores(self) -> None:
        """Choose cores by how much of one this process has used since the last look."""
        used_s, now_s = time.process_time(), time.monotonic()
        before_s, then_s = self._seen
        self._seen = used_s, now_s
        wanted = self.own if used_s - before_s > BUSY * (now_s - then_s) else self.all
        for thread in os.listdir("/proc/self/task"):  # each time: new threads may have other cores
            with contextlib.suppress(OSError):  # the thread has ended, or the cores have changed meanwhile
                os.sched_setaffinity(int(thread), wanted)


def follow_load() -> None:
    """Start the thread that chooses the cores, if the system can keep a process on a core."""
    if hasattr(os, "sched_setaffinity"):  # Linux
        threading.Thread(target=Cores().follow_load, name="cores", daemon=True).start()
