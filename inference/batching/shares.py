"""The decision whose job is next: owners take turns by what their jobs cost, and no priority waits for ever."""

from collections import Counter
from collections.abc import Collection, Hashable

ONE_IN = 16  # batches, of which one is for a lower priority whose jobs wait
MOST_REMEMBERED = 10_000  # owners; beyond that, owners whose jobs have had their time are forgotten


class OwnerShares:
    """The turns of the jobs of one priority, which share the engine between their owners by cost.

    This is start-time fair queueing (Goyal, Vin and Cheng: Start-time Fair Queueing, SIGCOMM 1996, theorem 4). A job's
    turn is the virtual time in seconds at which its owner's earlier jobs would have been computed if there were no
    other owner. The job with the smallest turn goes first. Of two owners with many jobs each gets half. An owner
    without earlier jobs is next, however many jobs of others wait.
    """

    def __init__(self) -> None:
        self.now = 0.0  # the turn of the last job that was taken, in seconds of virtual time
        self._until: dict[Hashable, float] = {}  # by owner: virtual time at which its jobs so far have had their time
        self._most = MOST_REMEMBERED

    def assign_turn(self, owner: Hashable, cost_s: float) -> float:
        """Return the turn of the owner's next job, which is expected to take `cost_s` of an engine."""
        turn = max(self.now, self._until.get(owner, 0.0))
        self._until[owner] = turn + max(0.0, cost_s)
        if len(self._until) > self._most:
            self._until = {owner: until for owner, until in self._until.items() if until > self.now}
            self._most = max(MOST_REMEMBERED, 2 * len(self._until))  # else each further job would go through all owners
        return turn

    def take_back_turn(self, owner: Hashable, cost_s: float) -> None:
        """Take back the time of a job of this owner that was expected to take `cost_s` and is not run here."""
        if owner in self._until:
            self._until[owner] -= max(0.0, cost_s)

    def advance_to_turn(self, turn: float) -> None:
        """Advance the virtual time to the turn of a job around which a batch was formed, and which goes now."""
        self.now = max(self.now, turn)


class PriorityShares:
    """The batches that lower priorities are owed: each gets at least one in `ONE_IN` while its jobs wait."""

    def __init__(self) -> None:
        self._passed: Counter[int] = Counter()  # by priority: batches of other priorities while its jobs waited

    def find_owed_priority(self, waiting: Collection[int]) -> int | None:
        """Return the priority whose turn it is although jobs of a higher one wait, or None.

        `waiting` has the priorities of the jobs that wait.
        """
        lower = sorted(waiting)[1:]
        return next((priority for priority in lower if self._passed[priority] >= ONE_IN - 1), None)

    def count_batch(self, priority: int, waiting: Collection[int]) -> None:
        """Count a batch that goes around a job of `priority`, while jobs of the priorities `waiting` wait."""
        self._passed = Counter({each: self._passed[each] + 1 for each in waiting if each != priority})
