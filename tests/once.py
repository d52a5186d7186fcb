"""Files and folders that many processes of a test run need are made by the first that needs them.

    path = made_once("packages", install)    # install(path) makes the file or folder

The others wait for it, and read it. It goes with the process that was the first to ask, or that called `folder`.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

FOLDER = "TESTS_MADE_ONCE"  # of the environment, which the processes share that this one starts


def folder() -> Path:
    """Return the folder of what is made once. Call it before the processes are started that are to share it."""
    if FOLDER not in os.environ:
        made = tempfile.TemporaryDirectory(prefix="made-once-")
        atexit.register(made.cleanup)
        os.environ[FOLDER] = made.name
    return Path(os.environ[FOLDER])


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """Return the file or folder of this name, which nobody may change."""
    made = folder() / name
    with open(folder() / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            part = Path(tempfile.mkdtemp(dir=folder())) / name
            make(part)
            part.rename(made)
    return made
