"""The decision which of several workers loads a model for which jobs wait."""

import hashlib
from collections.abc import Mapping

NEXT_S = 2.0  # seconds after which the next worker in the order loads what those before it have not begun to load
HELP_S = 30.0  # seconds; jobs that wait for at least so long are run by one more worker,
HELP_LOADS = 3.0  # if they wait for at least so many load times, too


def should_load(
    model: str, worker: str, others: Mapping[str, bool], *, seen_s: float, waited_s: float, load_s: float
) -> bool:
    """Return True if this worker is to load the model.

    `others` has the living workers by id that have the model in their catalog, and is True for those that have it in
    memory or load it. `seen_s` is how long this worker has seen jobs wait, `waited_s` how long the first of them has
    waited, `load_s` how long a load takes.
    """
    if any(others.values()):
        return waited_s >= max(HELP_S, HELP_LOADS * load_s)
    before = sum(_make_order_key(model, other) < _make_order_key(model, worker) for other in others)
    return seen_s >= before * NEXT_S


def _make_order_key(model: str, worker: str) -> bytes:
    """Return the sort key of a worker in an order that is another one for each model."""
    return hashlib.sha256(f"{model} {worker}".encode()).digest()
