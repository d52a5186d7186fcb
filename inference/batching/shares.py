"""Decides whose job is next: owners in turn by what their jobs cost, and no priority waits for ever."""

from collections import Counter
from collections.abc import Collection, Hashable

ONE_IN = 8  # batches, of which one is for a lower priority whose jobs wait
MOST_REMEMBERED = 10_000  # owners, before those are forgotten whose turn has come


class OwnerShares:
    """Turns of the jobs of one priority, which share the engine between their owners by cost.

    Start-time fair queueing: a job's turn is the virtual time in seconds at which its owner's jobs before it would
    have been computed, were there nobody else; the job with the smallest goes first. Of two owners with many jobs each
    gets half. Who has none before is next, however many jobs of others wait (Goyal, Vin and Cheng: Start-time Fair
    Queueing, SIGCOMM 1996, theorem 4).
    """

    def __init__(self) -> None:
        self.now = 0.0  # the turn of the last job that was taken, in seconds of virtual time
        self._until: dict[Hashable, float] = {}  # by owner: when its jobs so far have had their time
        self._most = MOST_REMEMBERED

    def enter(self, owner: Hashable, cost_s: float) -> float:
        """Return the turn of the owner's next job, which is expected to take `cost_s` of an engine."""
        turn = max(self.now, self._until.get(owner, 0.0))
        self._until[owner] = turn + max(0.0, cost_s)
        if len(self._until) > self._most:
            self._until = {owner: until for owner, until in self._until.items() if until > self.now}
            self._most = max(MOST_REMEMBERED, 2 * len(self._until))  # else they would be gone through for each job
        return turn

    def leave(self, owner: Hashable, cost_s: float) -> None:
        """A job of this owner that was expected to take `cost_s` is not run here."""
        if owner in self._until:
            self._until[owner] -= max(0.0, cost_s)

    def take(self, turn: float) -> None:
        """A job with this turn goes, around which a batch was formed."""
        self.now = max(self.now, turn)


class PriorityShares:
    """Tells which lower priority is owed a batch: each gets one in `ONE_IN` at least while its jobs wait."""

    def __init__(self) -> None:
        self._passed: Counter[int] = Counter()  # by priority: batches of others while its jobs waited

    def owed(self, waiting: Collection[int]) -> int | None:
        """Return the priority whose turn it is though jobs of a higher one wait. `waiting`: priorities of jobs."""
        lower = sorted(waiting)[1:]
        return next((priority for priority in lower if self._passed[priority] >= ONE_IN - 1), None)

    def take(self, priority: int, waiting: Collection[int]) -> None:
        """A batch around a job of `priority` goes, while jobs of these priorities wait."""
        self._passed = Counter({each: self._passed[each] + 1 for each in waiting if each != priority})
