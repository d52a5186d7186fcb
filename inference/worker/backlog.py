"""The jobs that a worker holds: in the queue of their model, beside it to run again or alone, or running."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from typing import Any
from uuid import UUID

from inference import clock, errors
from inference.batching.costs import CostModel
from inference.batching.queue import BatchQueue, Item, Limits
from inference.batching.room import Room
from inference.catalog.specs import Catalog, ModelSpec
from inference.models import Priority
from inference.worker.inflight import Batch, HeldJob, Search
from inference.worker.isolation import Isolation, Part
from inference.worker.replicas import Replicas

TOGETHER_S, HURRIED_S = 0.05, 0.01  # of the engine calls of one call of a child; the latter where somebody waits
MOST_TOGETHER = 480  # jobs of one call: a statement takes 500
PATIENT = int(Priority.LOW)  # and above: nobody waits for each of them
SET_BACK_S = 1.0  # by more than that a clock is, whose jobs seem to come yet
LEARNT = 8  # engine calls, from which on it is known how long one takes


class Backlog:
    """What is held here leaves by being released, given back or forgotten."""

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas
        self.specs: Catalog = {}  # of the queues
        self.queues: dict[str, BatchQueue] = {}  # by model; replaced as a whole
        self.follow()
        self.held: dict[str, HeldJob] = {}
        self.isolation = Isolation(devices=len(set(replicas.plan.devices)))
        self.batches: dict[UUID, Batch] = {}  # that run
        self.long: set[str] = set()  # models whose calls take much longer than what is done before and after them
        # How far the queues are worked off: when the newest job was made that was started, by model and priority.
        self.reached: dict[str, dict[str, float]] = defaultdict(dict)

    def follow(self) -> None:
        """A queue for each model that is run now, with its limits. One that is run no more keeps its queue until what
        it holds has been let go."""
        before, after = self.specs, self.replicas.specs
        if before is after:
            return
        queues = dict(self.queues)
        for name, spec in after.items():
            queue = queues.setdefault(name, BatchQueue(_limits(spec), CostModel()))
            queue.limit(_limits(spec))
            if name in before and before[name].load_digest != spec.load_digest:
                queue.learn_anew()
        self.specs, self.queues = after, queues

    def is_idle(self, model: str) -> bool:
        """Whether it holds nothing of this model."""
        return all(held.model != model for held in self.held.values())

    def __len__(self) -> int:
        """Jobs that wait."""
        return sum(map(len, self.queues.values())) + len(self.isolation)

    def add(self, item: Item, model: str, request: Any) -> None:
        """Hold a job until it is finished. A double of a held job only adds its message."""
        if known := self.held.get(item.id):
            known.requests.append(request)
            if item.alone and self.queues[model].remove(item.id):
                known.item = item
                self.isolation.wait_alone(known)
            return
        self.held[item.id] = held = HeldJob(item=item, model=model, requests=[request])
        if item.alone:
            self.isolation.wait_alone(held)
        else:
            self.queues[model].add(item)

    def started(self, batch: Batch) -> None:
        self.batches[batch.id] = batch
        self.isolation.sent(batch)
        self.has_joined(batch)

    def has_joined(self, batch: Batch) -> None:
        """Those that its last call brings."""
        reached = self.reached[batch.spec.name]
        for priority, arrived_at_s in {(held.item.priority, held.item.arrived_at_s) for held in batch.called}:
            key = str(priority)
            known = reached.get(key, 0.0)
            was_set_back = known > clock.time_s() + SET_BACK_S
            reached[key] = arrived_at_s if was_set_back else max(known, arrived_at_s)

    def ended(self, batch: Batch) -> None:
        self.batches.pop(batch.id, None)
        self.isolation.ended(batch)

    def release(self, held: HeldJob, error: str, engine_s: float) -> None:
        """Its outcome is on its row, or is not this worker's to tell. Acknowledges its messages."""
        self.held.pop(held.item.id, None)
        for request in held.requests:
            request.finished(error, engine_s)

    def forget_messages(self) -> None:
        """The connection is gone: what waits is delivered again; what runs, or has run and is looked into, goes on
        without its messages."""
        waiting = self._waiting()
        for held in self.held.values():
            held.requests.clear()
        for held in waiting:
            self._forget(held)

    def give_back_waiting(self) -> None:
        """The newest first, since what is given back goes before all others."""
        self._give_back(reversed(self._waiting()))

    def let_go(self) -> frozenset[UUID]:
        """What cannot be run here now goes back to its queue. What has run stays while a replica that had its model
        starts again; when that has failed, its row is to go back too: returns the batches of such rows."""
        if self.replicas.serving >= self.queues.keys():
            return frozenset()
        running = self._running()
        leaving = [
            held
            for held in self.held.values()
            if held.model not in (self.replicas.served if held.takes_over else self.replicas.serving)
            and held.item.id not in running
        ]
        self._give_back(leaving)
        if gone := self.queues.keys() - self.specs.keys() - {held.model for held in self.held.values()}:
            self.queues = {name: queue for name, queue in self.queues.items() if name not in gone}
        return frozenset(over for held in leaving for over in held.takes_over)

    def drop_expired(self) -> bool:
        """Of what waits: its messages are done with. Returns whether there was any, whose row is to say so."""
        expired = [item for queue in self.queues.values() for item in queue.expire(clock.time_s())]
        for item in expired:
            self.release(self.held[item.id], errors.Expired.code, 0.0)
        return bool(expired)

    def next(self, without: Set[str], *, idle: int) -> tuple[list[HeldJob], Search | None, bool] | None:
        """The jobs of the next batch, of other models than those `without`; the search that it is a step of, and
        whether nobody may join it. `idle` children share what is generated step by step."""
        now = clock.time_s()
        while part := self.next_alone(now) or self.isolation.next(self.replicas.runnable - without):
            self.isolation.parts.remove(part)
            if kept := [held for held in part.jobs if self.held.get(held.item.id) is held]:
                return kept, part.search, True
        for name, queue in self._due_in_turn(now):
            if name not in without and (items := self._take(name, queue, now, idle)):
                return [self.held[item.id] for item in items], None, False
        return None

    def more(self, first: Sequence[HeldJob], *, able: int) -> list[list[HeldJob]]:
        """The batches that go with `first` in one call of a child, as long as it is short and no other job would be
        next. `able` children share what waits."""
        queue, last = self.queues[first[0].model], list(first)
        limit_s, each_s = self._together_s(queue, first)
        most = min(MOST_TOGETHER, (len(first) + len(queue)) // max(1, able))
        jobs, took_s, more = 0, 0.0, []
        while self._may_go_on(queue, last):
            jobs, last_s = jobs + len(last), queue.following_s([held.item for held in last])
            took_s += last_s
            if jobs + min(len(last), len(queue)) > most or took_s + last_s > limit_s:
                break
            items = queue.take(clock.time_s(), most_s=min(each_s, limit_s - took_s))
            if not items:
                break
            last = [self.held[item.id] for item in items]
            more.append(last)
        return more

    def _together_s(self, queue: BatchQueue, first: Sequence[HeldJob]) -> tuple[float, float]:
        """How long the engine calls that go together may take, and each that follows. Where somebody waits for each,
        only such as take less than what is done before and after them: then they are answered sooner, but for the
        first."""
        if all(held.item.priority >= PATIENT for held in first):
            return TOGETHER_S, TOGETHER_S
        each_s = queue.costs.around_s(len(first))
        return HURRIED_S if queue.following_s([held.item for held in first]) <= each_s else 0.0, each_s

    def _may_go_on(self, queue: BatchQueue, batch: Sequence[HeldJob]) -> bool:
        """Whether the next of this queue may go with a batch that was taken from it."""
        if self.isolation.parts or queue.has_deadlines or queue.costs.calls < LEARNT:
            return False
        if any(held.item.expires_at_s for held in batch):
            return False
        due = self._due_in_turn(clock.time_s())
        return bool(due) and due[0][1] is queue

    def together(self) -> dict[str, int]:
        """How many jobs may share a call of a child, by model of which such wait."""
        return {
            name: min(MOST_TOGETHER, int(queue.costs.items_per_s() / queue.costs.pace * TOGETHER_S))
            for name, queue in self.queues.items()
            if queue.costs.calls >= LEARNT and (queue.head() or (0,))[0] >= PATIENT
        }

    def is_overtaken(self, batch: Batch) -> bool:
        """Whether somebody of another model or of a higher priority is to run before the last of these engine calls,
        were they not in one call: who waits, or was given to the same child since. Those of one model and priority come
        from several processes, nearly in their order."""
        if self.isolation.parts:
            return True
        turn = _turn(batch.called[-batch.shares[-1]])
        turns = [(name, queue.head()) for name, queue in self._due_in_turn(clock.time_s())]
        behind = (other for other in self.batches.values() if other.pid == batch.pid and other.number > batch.number)
        turns += ((other.spec.name, _turn(other.called[0])) for other in behind)
        return any(other and (other[0] < turn[0] if name == batch.spec.name else other < turn) for name, other in turns)

    def next_ahead(self) -> list[HeldJob] | None:
        """The jobs of a batch for a child that is busy. None where an idle one is waited for: by what is run again, or
        generated step by step."""
        now = clock.time_s()
        if self.isolation.next(self.replicas.runnable):
            return None
        for name, queue in self._due_in_turn(now):
            if self.replicas.steps(name):
                return None
            if items := queue.take(now):
                return [self.held[item.id] for item in items]
        return None

    def _take(self, name: str, queue: BatchQueue, now: float, idle: int) -> list[Item]:
        """None when all that was due has expired."""
        if not self.replicas.steps(name):
            return queue.take(now)
        limits = queue.limits
        share = math.ceil(len(queue) / max(1, idle))
        room = Room(rows=limits.max_batch_size, tokens=limits.max_batch_tokens, longest=int(queue.padded))
        return queue.take_next(now, room, most=share)

    def has_next(self, without: Set[str]) -> bool:
        """Whether there is a next batch, of other models than those `without`."""
        now = clock.time_s()
        if self.isolation.next(self.replicas.runnable - without):
            return True
        return any(name not in without for name, _ in self._due_in_turn(now))

    def joining(self, batch: Batch) -> list[HeldJob]:
        """Those who join an open batch now, taken out of their queue."""
        if not self.may_join(batch):
            return []
        queue = self.queues[batch.spec.name]
        items = queue.take_next(clock.time_s(), batch.room)
        for item in items:
            batch.room = batch.room.without(item.size, item.length)
        return [self.held[item.id] for item in items]

    def may_join(self, batch: Batch) -> bool:
        """Whether somebody waits who would, and fits. What is to be run again of this model goes first, by itself."""
        name = batch.spec.name
        if not (queue := self.queues.get(name)) or self.isolation.next({name}):
            return False
        return queue.may_take_next(batch.room)

    def next_alone(self, now: float) -> Part | None:
        """Of those that nothing may run beside, the one whose turn it is."""
        if not self.isolation.parts:
            return None
        heads = [head for _, queue in self._due_in_turn(now) if (head := queue.head())]
        return self.isolation.next_alone(self.replicas.runnable, heads)

    def due_in_s(self) -> float | None:
        """Seconds until the next batch may go, when it waits for company only."""
        now = clock.time_s()
        due = [wait_s for queue in self._able_queues() if (wait_s := _waits_s(queue, now)) is not None]
        if (again := self.isolation.due_in_s(self.replicas.runnable)) is not None:
            due.append(again)
        return max(0.0, min(due)) if due else None

    def _due_in_turn(self, now: float) -> list[tuple[str, BatchQueue]]:
        able = {name: queue for name, queue in self.queues.items() if name in self.replicas.serving}
        due = [entry for entry in able.items() if (wait_s := _waits_s(entry[1], now)) is not None and wait_s <= 0.0]
        return sorted(due, key=lambda entry: entry[1].head() or (0, 0.0))

    def _able_queues(self) -> list[BatchQueue]:
        return [queue for name, queue in self.queues.items() if name in self.replicas.serving]

    def _running(self) -> set[str]:
        return {held.item.id for batch in self.batches.values() for held in batch.jobs}

    def _waiting(self) -> list[HeldJob]:
        """Neither in one of the batches that run, nor to be looked into after one that is over."""
        running = self._running()
        return [held for held in self.held.values() if held.item.id not in running and not held.takes_over]

    def _give_back(self, leaving: Iterable[HeldJob]) -> None:
        for held in leaving:
            self._forget(held)
            for request in held.requests:
                request.give_back()

    def _forget(self, held: HeldJob) -> None:
        del self.held[held.item.id]
        self.isolation.forget(held)
        self.queues[held.model].remove(held.item.id)


def _waits_s(queue: BatchQueue, now: float) -> float | None:
    """Seconds until its next batch may go. That of a clock that was set back goes: none waits for longer."""
    if (at := queue.due_at_s()) is None:
        return None
    return at - now if at - now < queue.limits.max_wait_s + SET_BACK_S else 0.0


def _turn(first: HeldJob) -> tuple[int, float]:
    """Of a batch: `first` is its oldest, those of near lengths beside it are younger."""
    return first.item.priority, first.item.arrived_at_s


def _limits(spec: ModelSpec) -> Limits:
    return Limits(
        max_batch_size=spec.max_batch_size, max_batch_tokens=spec.max_batch_tokens, max_wait_s=spec.max_wait_ms / 1000
    )
