"""What other processes do in the cases that are about them: nothing here takes long to import."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

from inference.worker.child.time_limit import end_process_after
from tests.echo import Fail, misbehave

LEFT = 1 << 30  # bytes that a neighbour leaves
_held: list[Any] = []


def hold(size: int = 0, *, all_but: int = 0) -> None:
    """Take bytes of the device, or all but so many of what is free beside what this process needs to use it."""
    import torch

    _held.append(torch.empty(size or torch.cuda.mem_get_info()[0] - all_but, dtype=torch.uint8, device="cuda:0"))


def compute_endlessly(is_stand_in: bool, began: str, lock: str, limit_s: float) -> None:
    """Hold memory, on a stand-in a lock, and compute for ever."""
    with Path(lock).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not is_stand_in:
            hold(LEFT)
        with end_process_after(limit_s):
            Path(began).touch()
            if is_stand_in:
                misbehave({"fail": Fail.HANG_SLEEP, "seconds": 3600})
            import torch

            torch.cuda._sleep(10**15)  # noqa: SLF001 - the kernel that torch's own tests use
            torch.cuda.synchronize()
