"""Named steps where the fault harness may end the process: as if killed there, at the step `after_claim`, when
FAILPOINTS names a folder and the file `after_claim` in it can be deleted. The next to come by gets past."""

import os
from pathlib import Path

_folder = os.environ.get("FAILPOINTS", "")


def reach(step: str) -> None:
    if _folder and _taken(Path(_folder) / step):
        os._exit(137)


def _taken(file: Path) -> bool:
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True
