"""The named steps at which the fault harness may end a process, as if the process were killed there.

A process ends at the step `after_claim`, for example, if FAILPOINTS names a folder and the process can delete the file
`after_claim` in it. The next process that reaches the step finds no file, and goes on.
"""

import contextlib
import os
from pathlib import Path

_folder = os.environ.get("FAILPOINTS", "")


def reach(step: str) -> None:
    if _folder:
        with contextlib.suppress(FileNotFoundError):
            Path(_folder, step).unlink()
            os._exit(137)
