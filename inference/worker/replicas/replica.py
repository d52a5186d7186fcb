"""One replica of a worker, as its main process knows it."""

import time
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings

from inference.connection_retries import Backoff
from inference.worker.calls import ENDED_BY_IT, NEVER_ENDS, READY, TOO_LONG, Assignment, LoadReport, SharedState

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
COUNTED_S = 300.0


def make_backoff() -> Backoff:
    return Backoff(first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)


@dataclass(slots=True)
class ReplicaState:
    """The state of a replica: one child process after the other on one device."""

    device: str
    models: dict[str, str] = field(default_factory=dict)  # by digest, of each entry that was tried: READY, or why not
    notes: Mapping[str, str] = field(default_factory=dict)  # by model: how it is run, if in another way than most
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by model: what clients may want to know
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
    has_ended_between_loads: bool = False  # so ended its process before: the next one runs no call before it is up
    is_loading: bool = False  # its process was assigned other models later, and has not reported yet
    ready: frozenset[str] = frozenset()  # digests of the entries that its process can run
    # Digests of entries that can be run again soon: the process before had them, or its process has them and, as it
    # starts, loads another one.
    had: frozenset[str] = frozenset()
    has_reported: bool = False  # some process of it has reported its models, or has died of loading
    retry_at: float = 0.0  # monotonic: when it may try again to load what it lacks
    ends: list[float] = field(default_factory=list)  # monotonic: ends of processes that could run what was asked
    backoff: Backoff = field(default_factory=make_backoff)

    @property
    def loading_digest(self) -> str | None:
        """The digest of the entry that its process loads now, if it does."""
        number = self.shared.loading
        return self.assigned_digests[number - 1] if number else None

    def note_start(self, pid: int, assignment: Assignment, shared: SharedState) -> None:
        self.pid, self.is_up, self.ready = pid, False, frozenset()
        self.shared = shared
        self._assign(assignment)

    def note_assignment(self, assignment: Assignment) -> None:
        """Note that its process is to have loaded these models, beside its work."""
        self._assign(assignment)
        self.is_loading = True

    def _assign(self, assignment: Assignment) -> None:
        self.assigned_digests, self.assigned_at = tuple(spec.digest for spec in assignment), time.monotonic()

    def note_report(self, loaded: LoadReport, goal: Set[str]) -> None:
        """Note what its process has loaded. `goal` are the digests of what it is to have loaded."""
        kept = {key: why for key, why in self.models.items() if why != READY and key in goal}
        self.models = {**kept, **dict.fromkeys(self.killers & goal, self.why_ended), **loaded.models}
        self.ready = frozenset(key for key, state in self.models.items() if state == READY)
        self.is_up, self.has_reported, self.had, self.is_loading = True, True, frozenset(), False
        self.has_ended_between_loads = False
        self.notes, self.facts, self.memory, self.total = loaded.notes, loaded.facts, loaded.memory, loaded.total
        self.steps = loaded.steps
        self.killers = self.killers - self.ready if self.ready else frozenset()
        if goal <= self.ready:
            self.backoff.reset()
        else:
            self._set_retry_time()

    def note_partial_load(self, loaded: LoadReport) -> None:
        """Note what its process, which starts, has loaded so far and can run until `note_next_load`."""
        self.models = {**self.models, **loaded.models}
        self.ready = loaded.ready
        self.had = self.had.difference(loaded.models)
        self.notes, self.facts = {**self.notes, **loaded.notes}, {**self.facts, **loaded.facts}
        self.memory, self.total = {**self.memory, **loaded.memory}, loaded.total
        self.steps |= loaded.steps

    def note_next_load(self, after_s: float) -> None:
        """Note that its process loads its next model and can run nothing meanwhile. It ran calls for `after_s`."""
        self.had, self.ready = self.had | self.ready, frozenset()
        self.assigned_at += after_s

    def note_missing_report(self, why: Mapping[str, str], had: frozenset[str] = frozenset()) -> None:
        """Note why entries are not loaded, by digest: no process could be started, or it ended before its report.

        `had` are the digests of those that the next process is to load again.
        """
        self.models, self.had, self.has_reported = dict(why), had, True
        self._set_retry_time()

    def note_fatal_load(self, key: str, goal: Set[str]) -> None:
        """Note that its process ended while it loaded the entry with this digest.

        The killers are never all entries of `goal`, so that something is always left to be loaded.
        """
        took_s, limit_s = time.monotonic() - self.assigned_at, settings.LOAD_LIMIT_S
        self.why_ended = TOO_LONG.format(limit_s=limit_s) if took_s >= limit_s else ENDED_BY_IT
        killers = frozenset((self.killers | {key}) & goal)
        if len(killers) == len(goal):
            killers = frozenset({key} if len(killers) > 1 else ())
        self.killers = killers

    def note_end(self, had: frozenset[str]) -> None:
        """Note that its process is gone. `had` are the digests of the entries that the next one is to load again."""
        self.had = had
        self.pid, self.is_up, self.ready, self.is_loading = None, False, frozenset(), False

    def note_unkillable(self, goal: Collection[str]) -> None:
        """Note that its process cannot be ended, so that no other one is started."""
        self.had, self.models, self.has_reported = frozenset(), dict.fromkeys(goal, NEVER_ENDS), True

    def forget_obsolete_failures(self, goal: Set[str]) -> None:
        """Forget the failures to load entries that are not in `goal` any more."""
        self.models = {key: why for key, why in self.models.items() if why == READY or key in goal}
        self.killers &= goal

    def _set_retry_time(self) -> None:
        self.retry_at = time.monotonic() + self.backoff.take_next_pause_s()

    def count_end(self) -> None:
        """Count an end of its process, which could run what was asked of it."""
        self.ends = [*self._list_recent_ends(), time.monotonic()]

    @property
    def recent_end_count(self) -> int:
        """The number of such ends in the last minutes."""
        return len(self._list_recent_ends())

    def _list_recent_ends(self) -> list[float]:
        since = time.monotonic() - COUNTED_S
        return [end for end in self.ends if end > since]
