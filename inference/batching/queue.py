"""The queue of one model's waiting jobs, from which its next batch is formed."""

import functools
import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, NamedTuple

from sortedcontainers import SortedList

from inference.batching.costs import CostModel
from inference.batching.length_windows import Node, WindowSearch
from inference.batching.room import Room

AT_ONCE = -math.inf
LARGEST = 1_000_000_000  # items or tokens that a message may state
LOOK_AHEAD = 8  # batches' worth of items that are looked through for those of one group
MEMORY_S = 600.0  # for so long batches stay small after one did not fit: another process may have had the memory
FAIR = 3  # batches' worth of items whose turn is next, among which a batch is chosen where several owners wait
ALIKE = 8  # the same as NEIGHBOURS, for neighbours that all have one length
NEIGHBOURS = 24  # blocks on either side that are weighed: a bound on the work of forming a batch


Key = tuple[Any, ...]  # values that order an item, a number that no other item has, and the item
Line = SortedList[Key]


class Item(NamedTuple):
    """A waiting job as the policy sees it."""

    id: str
    group: str  # the digest of its parameters: only items of one group share a batch
    size: int  # rows that the engine runs for it
    length: int  # tokens of the longest row, to which the others are padded
    priority: int  # a smaller number goes first
    arrived_at_s: float  # seconds by the caller's clock
    expires_at_s: float | None = None
    alone: bool = False  # True if no other job may run beside it
    owner: str | None = None  # the user or API key whose job it is
    turn: float = 0.0  # among the jobs of its priority: the smallest goes first, then the oldest

    @property
    def order(self) -> tuple[int, float, float]:
        """The sort key of the item: the smallest goes first."""
        return self.priority, self.turn, self.arrived_at_s


def check_items(items: Sequence[Item]) -> None:
    """Check the items of one message, which differ in nothing but id, size and length.

    Raises `ValueError` if a number is out of range or a time is not finite.
    """
    for item in items:
        if not (1 <= item.size <= LARGEST and 1 <= item.length <= LARGEST):
            raise ValueError(f"size and length must be from 1 to {LARGEST}, not {item.size} and {item.length}")
    first = items[0]
    if abs(first.priority) > LARGEST:
        raise ValueError(f"priority must be a small number, not {first.priority:.6g}")
    if not (math.isfinite(first.arrived_at_s) and math.isfinite(first.expires_at_s or 0.0)):
        raise ValueError(f"times must be finite, not {first.arrived_at_s} and {first.expires_at_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_batch_size: int  # rows
    max_batch_tokens: int  # padded: rows x longest
    max_wait_s: float = 0.0


class ShortCalls(NamedTuple):
    """The limit on calls of jobs that can wait, while other jobs arrive which should not wait for a long call."""

    priority: int  # of the jobs that can wait; larger numbers can wait, too
    most_s: float


class BatchQueue:
    """The waiting items of one model. It is not thread-safe: the worker's event loop owns it.

    A batch is formed around the first item of the highest priority. Where a batch is padded to its longest item, the
    item's neighbours in length order join it, else the next items in their turn. Forming a batch costs the same however
    many items wait.
    """

    def __init__(self, limits: Limits, costs: CostModel) -> None:
        self.limits = limits
        self.costs = costs
        self.max_tokens: float = limits.max_batch_tokens  # lowered for a while after a batch did not fit into memory
        self._lowered_until_s = math.inf
        self.cut_at = math.inf  # tokens that the model reads of an item at most
        self.padded = True  # True if each item of a batch costs what the longest costs; else each costs its own
        self._numbers: dict[str, tuple[Item, int]] = {}  # by id: the item, and its number in the order of adding
        self._number = count()
        self._by_turn: dict[int, Line] = defaultdict(SortedList)  # by priority
        self._by_age: dict[int, Line] = defaultdict(SortedList)  # by priority
        self.owners: Counter[tuple[int, str | None]] = Counter()  # items by priority and owner
        self._by_length: dict[tuple[str, int], Line] = defaultdict(SortedList)  # by group and priority
        self._by_deadline: Line = SortedList()
        self._expired: dict[str, Item] = {}  # taken out of the queue, and not yet returned by `remove_expired`

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        """Yield the ids of the items that wait, in the order in which they were added."""
        return iter(self._numbers)

    def set_limits(self, limits: Limits) -> None:
        """Apply other limits from the next batch on."""
        if limits != self.limits:
            self.limits = limits
            self.max_tokens, self._lowered_until_s = limits.max_batch_tokens, math.inf

    def set_padding_and_truncation(self, *, padded: bool, cut_at: int | None) -> None:
        """Note how the model takes rows: padded to the longest or not, and cut at how many tokens, if it cuts them."""
        self.padded, self.cut_at = padded, cut_at or math.inf

    def forget_costs(self) -> None:
        """Forget the learnt costs: another model runs the waiting items, and nothing is known of its speed."""
        self.costs = CostModel()
        self.cut_at, self.padded = math.inf, True

    def add(self, item: Item) -> bool:
        """Add an item. Return False if an item of this id is already here: the caller drops the duplicate."""
        if item.id in self._numbers or item.id in self._expired:
            return False
        if item.length > self.cut_at:
            item = item._replace(length=int(self.cut_at))
        number = next(self._number)
        self._numbers[item.id] = item, number
        self._by_turn[item.priority].add(_make_turn_key(item, number))
        self._by_age[item.priority].add(_make_age_key(item, number))
        self.owners[item.priority, item.owner] += 1
        self._by_length[item.group, item.priority].add(_make_length_key(item, number))
        if item.expires_at_s is not None:
            self._by_deadline.add((item.expires_at_s, number, item))
        return True

    def remove(self, id: str) -> Item | None:
        """Take out and return one item (cancelled, revoked), also if it has expired; None if it is not here."""
        if id not in self._numbers:
            return self._expired.pop(id, None)
        item, number = self._numbers.pop(id)
        _discard_key(self._by_turn, item.priority, _make_turn_key(item, number))
        _discard_key(self._by_age, item.priority, _make_age_key(item, number))
        owner = item.priority, item.owner
        self.owners[owner] -= 1
        if not self.owners[owner]:
            del self.owners[owner]
        _discard_key(self._by_length, (item.group, item.priority), _make_length_key(item, number))
        if item.expires_at_s is not None:
            self._by_deadline.remove((item.expires_at_s, number, item))
        return item

    def remove_expired(self, now_s: float) -> list[Item]:
        """Take out and return the items that are past their deadline."""
        self._move_expired(now_s)
        expired, self._expired = list(self._expired.values()), {}
        return expired

    def find_due_at_s(self) -> float | None:
        """Return the time from which the next batch may go: `AT_ONCE` for now; None if no item waits.

        Like all times here it is in seconds by the caller's clock. It may lie in the past.
        """
        head = self.find_first_item()
        if head is None:
            return None
        if self.limits.max_wait_s <= 0.0 or self._has_full_batch(head):
            return AT_ONCE
        oldest_s: float = min(line[0][0] for line in self._by_age.values())
        return oldest_s + self.limits.max_wait_s

    @property
    def priorities(self) -> Collection[int]:
        """The priorities of which items wait."""
        return self._by_turn.keys()

    def find_first_item(self, priority: int | None = None) -> Item | None:
        """Return the item that must be in the next batch: models are served in the order of these items.

        With `priority` it is the first item of that priority. None if no such item waits.
        """
        line = self._by_turn.get(min(self._by_turn, default=0) if priority is None else priority)
        return line[0][-1] if line else None

    def find_oldest_arrival_s(self, priority: int) -> float:
        """Return the time at which the oldest item of this priority arrived; infinity if none waits."""
        line = self._by_age.get(priority)
        return float(line[0][0]) if line else math.inf

    def predict_overlapped_call_s(self, items: Sequence[Item]) -> float:
        """Return the seconds that a call of these items is expected to take when it follows other calls.

        The inputs are read while the call before computes. Where reading takes longer than the engine, its time counts.
        """
        size = sum(item.size for item in items)
        longest, tokens = max(item.length for item in items), sum(item.size * item.length for item in items)
        engine_s = self.costs.predict_engine_s(size, longest if self.padded else tokens / size)
        return engine_s * self.costs.read_to_run_ratio

    def estimate_item_cost_s(self, item: Item) -> float:
        """Return the item's part, in seconds, of the time of a full batch of such items."""
        most = self.limits.max_batch_size
        return self.costs.predict_call_s(most, min(item.length, self.cut_at)) / most * item.size

    def take_batch(self, now_s: float, *, priority: int | None = None, short: ShortCalls | None = None) -> list[Item]:
        """Form the next batch, take it out and return it.

        It holds the first item of the highest priority, or of `priority` if items of that priority wait. The list is
        empty if no item waits. With `short`, it has no more items that can wait than fit into a short call.
        """
        self._move_expired(now_s)
        if not now_s < self._lowered_until_s <= now_s + MEMORY_S:  # the time is over, or the clock was set back
            self.max_tokens, self._lowered_until_s = self.limits.max_batch_tokens, math.inf
        head = self.find_first_item(priority) or self.find_first_item()
        if head is None:
            return []
        batch = sorted(self._form_batch(head, now_s), key=self._rank_item)
        if short:
            batch = self._shorten_batch(batch, head, short)
        for item in batch:
            self.remove(item.id)
        return batch

    def _shorten_batch(self, batch: list[Item], head: Item, short: ShortCalls) -> list[Item]:
        """Return the head and the items that cannot wait, with as many others as leave the call short.

        Others join a call of items that cannot wait only if they make it no longer.
        """
        taken = [item for item in batch if item.priority < short.priority or item is head]
        others = [item for item in batch if item.priority >= short.priority and item is not head]
        short_s = short.most_s if head.priority >= short.priority else 0.0
        most_s = max(short_s, self.predict_overlapped_call_s(taken))
        counts = range(1, len(others) + 1)
        most = bisect_right(counts, most_s, key=lambda count: self.predict_overlapped_call_s(taken + others[:count]))
        return sorted(taken + others[:most], key=self._rank_item)

    def take_items_in_turn(
        self, now_s: float, room: Room, *, priority: int | None = None, most: int | None = None
    ) -> list[Item]:
        """Take out and return the next items in their turn, of any parameters, as long as there is room.

        It ends at the first item that does not fit: no later item goes before it. Items of `priority`, if given, come
        before all others. `most` bounds the number of items; with it, the first item is taken whether it fits or not.
        """
        self._move_expired(now_s)
        found: list[Item] = []
        priorities = sorted(self._by_turn, key=lambda each: (each != priority, each))
        for item in (key[-1] for each in priorities for key in self._by_turn[each]):
            room = room.subtract_rows(item.size, item.length)
            is_forced = most is not None and not found
            if len(found) == most or (room.is_exceeded and not is_forced):
                break
            found.append(item)
        for item in found:
            self.remove(item.id)
        return found

    def can_take_next_item(self, room: Room, priority: int | None = None) -> bool:
        """Return True if `take_items_in_turn` would take an item."""
        head = self.find_first_item(priority) or self.find_first_item()
        if head is None:
            return False
        return not room.subtract_rows(head.size, head.length).is_exceeded

    def learn_call(self, size: int, length: float, seconds: float, *, jobs: int) -> None:
        """Learn that the engine took `seconds` for `jobs` jobs of `size` rows in all.

        The engine runs no more rows of one job at a time than a batch holds. So a job of more rows counts as several
        calls, and an average one of them is learnt.
        """
        calls = math.ceil(size / self.limits.max_batch_size)
        self.costs.learn_call(math.ceil(size / calls), length, seconds / calls, jobs=jobs / calls)

    def limit_after_out_of_memory(self, size: int, length: float, now_s: float) -> None:
        """Bound the next batches by half the tokens of a call that did not fit into memory, while its halves did.

        The bound holds for `MEMORY_S`.
        """
        self.max_tokens = min(self.max_tokens, size * length / 2)
        self._lowered_until_s = now_s + MEMORY_S

    def _move_expired(self, now_s: float) -> None:
        while self._by_deadline and self._by_deadline[0][0] <= now_s:
            item: Item = self._by_deadline[0][-1]
            self.remove(item.id)
            self._expired[item.id] = item

    def _has_full_batch(self, head: Item) -> bool:
        """Return True if enough items wait to reach a limit: waiting longer brings no larger batch."""
        size, tokens = 0, 0  # tokens without padding
        for line in (line for (group, _), line in self._by_length.items() if group == head.group):
            for item in (key[-1] for key in line):
                size, tokens = size + item.size, tokens + item.size * item.length
                if size >= self.limits.max_batch_size or tokens >= self.max_tokens:
                    return True
        return False

    def _rank_item(self, item: Item) -> tuple[tuple[int, float, float], int]:
        return item.order, self._numbers[item.id][1]

    def _form_batch(self, head: Item, now_s: float) -> list[Item]:
        """Form a batch around the head.

        Items of other priorities join it only if no item of the head's priority is left behind; higher priorities
        come first.
        """
        batch = [head]
        for priority in sorted(self._by_turn, key=lambda each: (each != head.priority, each)):
            batch = (
                self._widen_batch(batch, head, priority, now_s) if self.padded else self._fill_batch(batch, priority)
            )
            if sum(item.priority == priority for item in batch) < len(self._by_turn[priority]):
                break
        return batch

    def _fill_batch(self, batch: list[Item], priority: int) -> list[Item]:
        """Return the batch with the next items of `priority` in their turn.

        It takes as many as give most tokens a second, and is never slower than its items one at a time.
        """
        head, found = batch[0], list(batch)
        size, tokens, singly_s = 0, 0, 0.0
        most, best = 0.0, len(batch)
        seconds_of = functools.cache(self.costs.predict_call_s)  # many short texts have few shapes
        line = islice(self._by_turn[priority], LOOK_AHEAD * self.limits.max_batch_size)
        found += (key[-1] for key in line if key[-1].group == head.group and self._fits_beside(head, key[-1]))
        for last, item in enumerate(found, 1):
            size, tokens = size + item.size, tokens + item.size * item.length
            singly_s += seconds_of(item.size, item.length)
            if last < len(batch):
                continue
            if last > 1 and (size > self.limits.max_batch_size or tokens > self.max_tokens):
                break
            seconds = self.costs.predict_call_s(size, tokens / size)
            if tokens / seconds > most and (seconds <= singly_s or last == len(batch)):
                most, best = tokens / seconds, last
        return found[:best]

    def _widen_batch(self, batch: list[Item], head: Item, priority: int, now_s: float) -> list[Item]:
        """Return the batch with its neighbours of `priority` in the best window."""
        shorter, longer = self._list_neighbours(batch, head, priority)
        if not shorter and not longer:
            return batch
        blocks = [*reversed(shorter), batch, *longer]
        shapes = {(item.size, item.length) for block in blocks for item in block}
        singly_s = {shape: self.costs.predict_call_s(*shape) for shape in shapes}  # many short texts have few shapes
        old_s = max(now_s - head.arrived_at_s, self.limits.max_wait_s)  # of jobs that wait for company, none is old yet
        search = WindowSearch(
            [_make_node(block, singly_s, old_s, now_s) for block in blocks],
            len(shorter),
            self.costs,
            max_size=self.limits.max_batch_size,
            max_tokens=self.max_tokens,
        )
        return [item for place in search.find_best_window() for item in blocks[place]]

    def _list_neighbours(
        self, batch: list[Item], head: Item, priority: int
    ) -> tuple[list[list[Item]], list[list[Item]]]:
        """Return the items of `priority` that are next in length, downwards and upwards, each in blocks."""
        line = self._by_length.get((head.group, priority))
        if line is None:
            return [], []
        length = max(item.length for item in batch)
        longer = (key[-1] for key in line.irange((length + 1,)))
        return self._split_into_blocks(head, _list_shorter_items(line, length)), self._split_into_blocks(head, longer)

    def _split_into_blocks(self, head: Item, line: Iterable[Item]) -> list[list[Item]]:
        """Return the first items of `line` that may join, as many as a batch holds, in blocks.

        A block is one item, or several where there are more than `NEIGHBOURS` items, or `ALIKE` of one length.
        """
        most = self.limits.max_batch_size
        looked_at, last_turn = islice(line, LOOK_AHEAD * most), self._compute_last_turn(head.priority)
        fitting = (item for item in looked_at if item.turn <= last_turn and self._fits_beside(head, item))
        items = list(islice(fitting, most))
        most = NEIGHBOURS if items and items[0].length != items[-1].length else ALIKE
        step = math.ceil(len(items) / most) or 1
        return [items[at : at + step] for at in range(0, len(items), step)]

    def _compute_last_turn(self, priority: int) -> float:
        """Return the last turn that may join a batch.

        It is infinity unless several owners wait, with more items than `FAIR` batches hold. With the bound, the owner
        with most items to choose from has no more of a batch than the others.
        """
        line, most = self._by_turn[priority], FAIR * self.limits.max_batch_size
        is_shared = len(line) > most and len({owner for of, owner in self.owners if of == priority}) > 1
        return float(line[most][0]) if is_shared else math.inf

    def _fits_beside(self, head: Item, item: Item) -> bool:
        """Return True if the item is not the head and fits into a batch beside it.

        An item that does not fit would be in the way of those behind it.
        """
        return item is not head and head.size + item.size <= self.limits.max_batch_size


def _make_node(block: list[Item], singly_s: Mapping[tuple[int, int], float], old_s: float, now_s: float) -> Node:
    """Make the node of a block.

    `singly_s` has the seconds that an item of a size and length takes by itself. An item that waited for `old_s`
    seconds counts as old in full, a younger one in part.
    """
    size, length, alone_s, aged_s = 0, 0, 0.0, 0.0
    for item in block:
        own_s, age_s = singly_s[item.size, item.length], now_s - item.arrived_at_s
        size, length, alone_s = size + item.size, max(length, item.length), alone_s + own_s
        aged_s += own_s if age_s >= old_s or old_s <= 0.0 else own_s * max(0.0, age_s / old_s)
    return Node(size, length, alone_s, aged_s)


def _list_shorter_items(line: Line, length: int) -> Iterator[Item]:
    """Yield items of `length` and less, the longest first, those of one length in the order of their turn."""
    while key := next(line.irange(maximum=(length + 1,), reverse=True), None):
        run = key[0]
        yield from (equal[-1] for equal in line.irange((run,), (run + 1,)))
        length = run - 1


def _make_turn_key(item: Item, number: int) -> Key:
    return item.turn, item.arrived_at_s, number, item


def _make_age_key(item: Item, number: int) -> Key:
    return item.arrived_at_s, number, item


def _make_length_key(item: Item, number: int) -> Key:
    return item.length, item.turn, item.arrived_at_s, number, item


def _discard_key(lines: dict[Any, Line], name: Hashable, key: Key) -> None:
    lines[name].remove(key)
    if not lines[name]:
        del lines[name]
