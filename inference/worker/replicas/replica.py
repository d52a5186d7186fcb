"""One replica of a worker, as its main process knows it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from inference.failures import Pauses
from inference.worker.calls import ENDED_BY_IT, SharedState

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
COUNTED_S = 300.0


def make_pauses() -> Pauses:
    return Pauses(first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)


@dataclass(slots=True)
class ReplicaState:
    """The state of a replica: one child process after the other on one device."""

    device: str
    models: dict[str, str] = field(default_factory=dict)  # by digest, of each entry that was tried: READY, or why not
    notes: Mapping[str, str] = field(default_factory=dict)  # by model: how it is run, if in another way than most
    memory: Mapping[str, int] = field(default_factory=dict)  # bytes by digest, of the entries that its process has
    total: int = 0  # bytes of its device
    pid: int | None = None  # of its living process
    assigned_digests: tuple[str, ...] = ()  # digests of the entries that its process was assigned
    assigned_at: float = 0.0  # monotonic: when its process was assigned those
    why_ended: str = ENDED_BY_IT  # why its killers are not loaded
    shared: SharedState = field(default_factory=SharedState)  # memory that is shared with its process
    steps: frozenset[str] = frozenset()  # digests of the entries that generate step by step
    killers: frozenset[str] = frozenset()  # digests of entries that a process ended with while it loaded them
    is_up: bool = False  # its process has reported what it loaded
    is_loading: bool = False  # its process was assigned other models later, and has not reported yet
    ready: frozenset[str] = frozenset()  # digests of the entries that its process can run
    had: frozenset[str] = frozenset()  # digests that the process before had loaded, to be loaded again
    has_reported: bool = False  # some process of it has reported its models, or has died of loading
    retry_at: float = 0.0  # monotonic: when it may try again to load what it lacks
    ends: list[float] = field(default_factory=list)  # monotonic: ends of processes that could run what was asked
    pauses: Pauses = field(default_factory=make_pauses)

    def set_retry_time(self) -> None:
        self.retry_at = time.monotonic() + self.pauses.next_s()

    def note_end(self) -> None:
        """Note that its process has ended, though it could run what was asked of it."""
        self.ends = [*self._recent(), time.monotonic()]

    @property
    def recent_end_count(self) -> int:
        """The number of such ends in the last minutes."""
        return len(self._recent())

    def _recent(self) -> list[float]:
        since = time.monotonic() - COUNTED_S
        return [end for end in self.ends if end > since]
