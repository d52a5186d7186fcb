"""Keeps a web process that computes much on one core, and lets one that waits for models run on any.

One thread at a time holds Python's lock: on one core it finds its data in that core's cache, which is a fifth less CPU
a request. Where replicas compute on the same cores, a process that needs little of its core waits for it instead, and
short texts take 5 to 20 % longer.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

LOOK_S = 5.0
BUSY = 0.5  # of a core


class Cores:
    """Chooses the cores of this process. Processes side by side have different ones for themselves."""

    def __init__(self) -> None:
        self.all = os.sched_getaffinity(0)
        self.own = {sorted(self.all)[os.getpid() % len(self.all)]}
        self._seen = time.process_time(), time.monotonic()

    def follow_load(self) -> None:
        while True:
            time.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Choose cores by how much of one this process has used since the last look."""
        used_s, now_s = time.process_time(), time.monotonic()
        before_s, then_s = self._seen
        self._seen = used_s, now_s
        wanted = self.own if used_s - before_s > BUSY * (now_s - then_s) else self.all
        for thread in os.listdir("/proc/self/task"):  # each time: threads have begun meanwhile, with others' cores
            with contextlib.suppress(OSError):  # it has ended, or the cores have changed meanwhile
                os.sched_setaffinity(int(thread), wanted)


def follow_load() -> None:
    """Start the thread that looks, where the system can hold a process to a core."""
    if hasattr(os, "sched_setaffinity"):  # Linux
        threading.Thread(target=Cores().follow_load, name="cores", daemon=True).start()
