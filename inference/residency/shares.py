"""Which of several workers loads a model for which jobs wait."""

import hashlib
from collections.abc import Mapping

NEXT_S = 2.0  # after so long the next in the order loads what those before it have not begun to load
HELP_S = 30.0  # jobs that wait for longer are run by one more worker,
HELP_LOADS = 3.0  # and than so many load times


def is_ours(
    model: str, worker: str, others: Mapping[str, bool], *, seen_s: float, waited_s: float, load_s: float
) -> bool:
    """`others`: by id, whether a living worker that has this model in its catalog has it in memory, or loads it.
    `seen_s`: for how long this worker has seen jobs wait, `waited_s`: for how long the first of them has waited."""
    if any(others.values()):
        return waited_s >= max(HELP_S, HELP_LOADS * load_s)
    before = sum(_place(model, other) < _place(model, worker) for other in others)
    return seen_s >= before * NEXT_S


def _place(model: str, worker: str) -> bytes:
    """Another order of the workers for each model."""
    return hashlib.sha256(f"{model} {worker}".encode()).digest()
