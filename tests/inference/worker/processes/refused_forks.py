"""Imported by the process that forks, in a test: it can fork nobody while there is the file REFUSES_FORKS."""

import errno
import os
import sys
from pathlib import Path

_fork = os.fork


def fork() -> int:
    if Path(os.environ["REFUSES_FORKS"]).exists():
        raise OSError(errno.ENOMEM, "told so")
    return _fork()


os.fork = fork
sys.excepthook = lambda *_: None  # it ends of it, as the test wants
