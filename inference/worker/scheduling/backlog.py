"""The jobs that a worker holds: in the queue of their model, in a part that runs again or alone, or running."""

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple
from uuid import UUID

from inference import clock, errors
from inference.batching.costs import CostModel
from inference.batching.queue import BatchQueue, Item, Limits, ShortCalls
from inference.batching.room import Room
from inference.batching.shares import OwnerShares, PriorityShares
from inference.catalog.specs import Catalog, ModelSpec
from inference.values.priority import PATIENT
from inference.worker.replicas.registry import ReplicaRegistry
from inference.worker.scheduling.held_jobs import Batch, Bisection, HeldJob, MessageRequest
from inference.worker.scheduling.isolation import Isolation, RetryGroup

SHORT_S = 0.02  # engine time of a call of jobs that can wait, while a client waits for others
ARRIVED_S = 2.0  # clients are taken to wait for so long after the last job of a higher priority has arrived
SET_BACK_S = 1.0  # a clock set back by more makes jobs seem to arrive in the future
GONE_WEIGHT = 0.05  # weight of the last batch in the share of jobs that are gone


class Turn(NamedTuple):
    """A batch that may go now, formed around the first job of a queue or of one priority in it."""

    model: str
    queue: BatchQueue
    priority: int
    order: tuple[int, float, float]  # of the first job


class Backlog:
    """The jobs that a worker holds. A job leaves by being released, given back or forgotten."""

    def __init__(self, replicas: ReplicaRegistry) -> None:
        self.replicas = replicas
        self.specs: Catalog = {}  # entries of the models that have queues
        self.queues: dict[str, BatchQueue] = {}  # queues by model; replaced as a whole
        self.update_queues()
        self.held: dict[str, HeldJob] = {}
        self.isolation = Isolation(devices=len(set(replicas.plan.devices)))
        self.batches: dict[UUID, Batch] = {}  # running batches by id
        self.long: set[str] = set()  # models whose engine calls take much longer than the work before and after them
        self._owners: dict[int, OwnerShares] = defaultdict(OwnerShares)  # shares by priority, over all models
        self._priorities = PriorityShares()
        self._hurried_at = -math.inf  # when the last job came for which a client may wait, by the monotonic clock
        self.gone_share = 0.0  # share of jobs in recent batches that had been run or cancelled before
        # The progress of the queues, by model and priority: the creation time of the newest job that was
        # started, but no later than that of the oldest job that waits here: jobs are taken in their turn.
        self.reached: dict[str, dict[int, float]] = defaultdict(dict)

    def update_queues(self) -> None:
        """Keep a queue, with the present limits, for each model that is run now.

        A model that is not run any more keeps its queue until the jobs in it have been given back.
        """
        before, after = self.specs, self.replicas.specs
        if before is after:
            return
        queues = dict(self.queues)
        for name, spec in after.items():
            queue = queues.setdefault(name, BatchQueue(_make_limits(spec), CostModel()))
            queue.set_limits(_make_limits(spec))
            if name in before and before[name].load_digest != spec.load_digest:
                queue.forget_costs()
        self.specs, self.queues = after, queues

    def has_no_jobs_of(self, model: str) -> bool:
        """Return True if no job of this model is held."""
        return all(held.model != model for held in self.held.values())

    def __len__(self) -> int:
        """Return the number of jobs that wait."""
        return sum(map(len, self.queues.values())) + len(self.isolation)

    def hold_job(self, item: Item, model: str, request: MessageRequest | None = None) -> None:
        """Hold a job until it is finished. A duplicate of a held job only adds its message.

        Without `request`, the job's message has not arrived: it may be in the broker behind others.
        """
        if known := self.held.get(item.id):
            if request:
                known.requests.append(request)
            if item.alone and self.queues[model].remove(item.id):
                known.item = item
                self.isolation.hold_lone_job(known)
            return
        if item.priority < PATIENT:
            self._hurried_at = time.monotonic()
        item = item._replace(
            turn=self._owners[item.priority].assign_turn(item.owner, self.queues[model].estimate_item_cost_s(item))
        )
        self.held[item.id] = held = HeldJob(
            item=item, model=model, requests=[request] if request else [], is_from_row=not request
        )
        if item.alone:
            self.isolation.hold_lone_job(held)
        else:
            self.queues[model].add(item)

    def child_has_open_batch(self, pid: int) -> bool:
        """Return True if a batch is open in the child process `pid`."""
        return any(batch.is_open and batch.pid == pid for batch in self.batches.values())

    def note_batch_start(self, batch: Batch) -> None:
        self.batches[batch.id] = batch
        self.isolation.begin_turn_of_others(batch)
        self.update_newest_creation_times(batch)

    def update_newest_creation_times(self, batch: Batch) -> None:
        """Update `reached` by the jobs that a batch's last call brings."""
        reached = self.reached[batch.spec.name]
        queue = self.queues[batch.spec.name]
        arrivals = {(held.item.priority, held.item.arrived_at_s) for held in batch.called if held.requests}
        for priority, at_s in arrivals:
            known, arrived_at_s = reached.get(priority, 0.0), min(at_s, queue.find_oldest_arrival_s(priority))
            was_set_back = known > clock.estimate_now_s() + SET_BACK_S
            reached[priority] = arrived_at_s if was_set_back else max(known, arrived_at_s)

    def note_long_calls(self, model: str, *, is_long: bool) -> None:
        """Note whether an engine call of a model took much longer than the work before and after it."""
        (self.long.add if is_long else self.long.discard)(model)

    def update_gone_share(self, given: int, run: int) -> None:
        """Update the share of gone jobs: `run` of a batch's `given` jobs ran, the others only took up room in it."""
        self.gone_share += (1.0 - run / given - self.gone_share) * GONE_WEIGHT

    def note_batch_end(self, batch: Batch) -> None:
        self.batches.pop(batch.id, None)
        self.isolation.record_time_owed_others(batch)

    def acknowledge_job(self, held: HeldJob, error: str, engine_s: float) -> None:
        """Release a job and acknowledge its messages.

        Its outcome is on its row, or the row does not belong to this worker any more.
        """
        self.held.pop(held.item.id, None)
        for request in held.requests:
            request.note_job_end(error, engine_s)

    def drop_job_without_messages(self, held: HeldJob) -> None:
        """Drop a job whose messages are forgotten: the broker delivers them again."""
        self.held.pop(held.item.id, None)

    def forget_messages(self) -> None:
        """Forget all messages, since the connection to the broker is gone.

        Waiting jobs are dropped: the broker delivers them again. Jobs that run, or that have run and are being
        isolated, continue without their messages.
        """
        waiting = self._list_waiting_jobs()
        for held in self.held.values():
            for request in held.requests:
                request.remove_from_running_tasks()
            held.requests.clear()
        for held in waiting:
            self._forget_job(held)

    def give_back_waiting_jobs(self) -> None:
        """Give back the waiting jobs, the newest first, since a returned job goes before all others of its queue."""
        self._give_back_jobs(reversed(self._list_waiting_jobs()))

    def give_back_unrunnable_jobs(self) -> frozenset[UUID]:
        """Give back the jobs that cannot be run here now, and return the batches whose rows are to be queued again.

        A job that has run stays while a replica that had its model restarts. If the restart fails, the job's row goes
        back too.
        """
        if self.replicas.unpaused_models >= self.queues.keys():
            return frozenset()
        running = self._list_running_ids()
        leaving = [
            held
            for held in self.held.values()
            if held.model not in (self.replicas.served_models if held.takes_over else self.replicas.unpaused_models)
            and held.item.id not in running
        ]
        self._give_back_jobs(leaving)
        if gone := self.queues.keys() - self.specs.keys() - {held.model for held in self.held.values()}:
            self.queues = {name: queue for name, queue in self.queues.items() if name not in gone}
        return frozenset(over for held in leaving for over in held.takes_over)

    def drop_expired(self) -> bool:
        """Drop the waiting jobs that have expired, and acknowledge their messages.

        Return True if there were any: their rows are still to be marked.
        """
        expired = [
            item for queue in self.queues.values() for item in queue.remove_expired(clock.estimate_earliest_now_s())
        ]
        for item in expired:
            self.return_cost_to_owner(self.held[item.id])
            self.acknowledge_job(self.held[item.id], errors.Expired.code, 0.0)
        return bool(expired)

    def drop_ended_job(self, id: str) -> None:
        """Drop a waiting job whose row shows that it has ended, and acknowledge its messages."""
        held = self.held.get(id)
        if held and self.queues[held.model].remove(id):
            self.return_cost_to_owner(held)
            self.acknowledge_job(held, "", 0.0)

    def return_cost_to_owner(self, held: HeldJob) -> None:
        """Return to the owner's share the cost of a job that is not run here."""
        self._owners[held.item.priority].take_back_turn(
            held.item.owner, self.queues[held.model].estimate_item_cost_s(held.item)
        )

    def take_next_batch(self, without: Set[str], *, idle: int) -> tuple[list[HeldJob], Bisection | None, bool] | None:
        """Return the next batch of models not in `without`: its jobs, its search, and whether it is closed.

        The search is the bisection that the batch is a step of, if any. No job may join a closed batch. `idle` child
        processes share the jobs of a model that generates step by step. Return None if nothing may go.
        """
        now = clock.estimate_earliest_now_s()
        while part := self.find_next_lone_group(now) or self.isolation.find_next_group(
            self.replicas.runnable - without
        ):
            if part.jobs[0].model in without:  # it has to run alone, in a child that has its model
                return None
            self.isolation.remove_group(part)
            if kept := [held for held in part.jobs if self.held.get(held.item.id) is held]:
                return kept, part.search, True
        for turn in self._list_turns(now, without):
            if items := self._take_items(turn, now, idle):
                return self._collect_jobs(turn, items), None, False
        return None

    def take_batch_ahead(self, without: Set[str]) -> list[HeldJob] | None:
        """Return the jobs of a batch for a busy child process, of models not in `without`.

        Return None if no batch may go, or if the next one needs an idle child: it is run again, or its model generates
        step by step.
        """
        now = clock.estimate_earliest_now_s()
        if self.isolation.parts and self.isolation.find_next_group(self.replicas.models_runnable_without_load):
            return None
        for turn in self._list_turns(now, without):
            if self.replicas.generates_by_steps(turn.model):
                return None
            if items := turn.queue.take_batch(now, priority=turn.priority, short=self._find_short_calls()):
                return self._collect_jobs(turn, items)
        return None

    def _take_items(self, turn: Turn, now: float, idle: int) -> list[Item]:
        """Take the items of a turn's batch out of its queue. The list is empty if all that was due has expired."""
        queue = turn.queue
        if not self.replicas.generates_by_steps(turn.model):
            return queue.take_batch(now, priority=turn.priority, short=self._find_short_calls())
        limits = queue.limits
        share = math.ceil(len(queue) / max(1, idle))
        room = Room(rows=limits.max_batch_size, tokens=limits.max_batch_tokens, longest=int(queue.padded))
        return queue.take_items_in_turn(now, room, priority=turn.priority, most=share)

    def _find_short_calls(self) -> ShortCalls | None:
        """Return the limit on calls of jobs that can wait, or None while no client waits for other jobs."""
        is_hurried = time.monotonic() < self._hurried_at + ARRIVED_S
        return ShortCalls(PATIENT, SHORT_S) if is_hurried else None

    def _collect_jobs(self, turn: Turn, items: Sequence[Item]) -> list[HeldJob]:
        """Return the jobs of a batch that goes now, and note that its owner and its priority had their turn."""
        waiting = {priority for queue in self._list_able_queues() for priority in queue.priorities}
        self._priorities.count_batch(turn.priority, {turn.priority, *waiting})
        self._owners[turn.priority].advance_to_turn(turn.order[1])
        return [self.held[item.id] for item in items]

    def has_waiting_jobs(self, models: Set[str]) -> bool:
        """Return True if jobs of these models wait, also those that are to be run again after a pause."""
        running = self._list_running_ids()
        return any(held.model in models and held.item.id not in running for held in self.held.values())

    def has_next_batch(self, without: Set[str]) -> bool:
        """Return True if there is a next batch, of models not in `without`."""
        now = clock.estimate_earliest_now_s()
        if self.isolation.find_next_group(self.replicas.runnable - without):
            return True
        return any(turn.model not in without for turn in self._list_due_turns(now))

    def take_joining_jobs(self, batch: Batch) -> list[HeldJob]:
        """Take the jobs that join an open batch now out of their queue, and return them."""
        if not self.can_any_job_join(batch):
            return []
        queue = self.queues[batch.spec.name]
        turn = self._find_turn(batch.spec.name, queue)
        items = (
            queue.take_items_in_turn(clock.estimate_earliest_now_s(), batch.room, priority=turn.priority)
            if turn
            else []
        )
        return self._collect_jobs(turn, items) if turn and items else []

    def can_any_job_join(self, batch: Batch) -> bool:
        """Return True if a waiting job would join the batch and fits.

        Jobs of this model that are to be run again go first, in a batch of their own.
        """
        name = batch.spec.name
        if not (queue := self.queues.get(name)) or self.isolation.find_next_group({name}):
            return False
        turn = self._find_turn(name, queue)
        return turn is not None and queue.can_take_next_item(batch.room, turn.priority)

    def find_next_lone_group(self, now: float) -> RetryGroup | None:
        """Return the jobs whose turn it is to run alone, if any."""
        if not self.isolation.parts:
            return None
        return self.isolation.find_next_lone_group(
            self.replicas.models_runnable_without_load, [turn.order for turn in self._list_due_turns(now)]
        )

    def find_next_due_in_s(self) -> float | None:
        """Return the seconds until the next batch may go, or None if none waits for time to pass."""
        now = clock.estimate_earliest_now_s()
        due = [wait_s for queue in self._list_able_queues() if (wait_s := _find_wait_s(queue, now)) is not None]
        if (again := self.isolation.find_next_due_in_s(self.replicas.runnable)) is not None:
            due.append(again)
        return max(0.0, min(due)) if due else None

    def _list_due_turns(self, now: float) -> list[Turn]:
        """Return the queues whose next batch may go, in the order of the first job of each."""
        able = {name: queue for name, queue in self.queues.items() if name in self.replicas.unpaused_models}
        due = [
            Turn(name, queue, head.priority, head.order)
            for name, queue in able.items()
            if (wait_s := _find_wait_s(queue, now)) is not None and wait_s <= 0.0 and (head := queue.find_first_item())
        ]
        return sorted(due, key=lambda turn: turn.order)

    def _list_turns(self, now: float, without: Set[str]) -> list[Turn]:
        """Return the due turns of models not in `without`, preceded by turns of a priority that is owed a batch."""
        due = [turn for turn in self._list_due_turns(now) if turn.model not in without]
        if (owed := self._find_owed_priority(due)) is None:
            return due
        first = [
            Turn(turn.model, turn.queue, owed, head.order) for turn in due if (head := turn.queue.find_first_item(owed))
        ]
        return [*sorted(first, key=lambda turn: turn.order), *due]

    def _find_owed_priority(self, due: Iterable[Turn]) -> int | None:
        """Return the lower priority of these queues that is owed a batch, if any."""
        return self._priorities.find_owed_priority({priority for turn in due for priority in turn.queue.priorities})

    def _find_turn(self, model: str, queue: BatchQueue) -> Turn | None:
        """Return the turn of the job that goes first in one queue, whatever waits in others."""
        head = queue.find_first_item(self._priorities.find_owed_priority(queue.priorities)) or queue.find_first_item()
        return Turn(model, queue, head.priority, head.order) if head else None

    def _list_able_queues(self) -> list[BatchQueue]:
        return [queue for name, queue in self.queues.items() if name in self.replicas.unpaused_models]

    def _list_running_ids(self) -> set[str]:
        return {held.item.id for batch in self.batches.values() for held in batch.jobs}

    def _list_waiting_jobs(self) -> list[HeldJob]:
        """Return the jobs that are in no running batch, and that are not being isolated after one that ended."""
        running = self._list_running_ids()
        return [held for held in self.held.values() if held.item.id not in running and not held.takes_over]

    def _give_back_jobs(self, leaving: Iterable[HeldJob]) -> None:
        for held in leaving:
            self._forget_job(held)
            for request in held.requests:
                request.give_back_message()

    def _forget_job(self, held: HeldJob) -> None:
        del self.held[held.item.id]
        self.return_cost_to_owner(held)
        self.isolation.forget_job(held)
        self.queues[held.model].remove(held.item.id)


def _find_wait_s(queue: BatchQueue, now: float) -> float | None:
    """Return the seconds until the queue's next batch may go, or None if it is empty.

    No batch waits longer than the limit: one that seems to has times of a clock that was set back, and goes now.
    """
    if (at := queue.find_due_at_s()) is None:
        return None
    return at - now if at - now < queue.limits.max_wait_s + SET_BACK_S else 0.0


def _make_limits(spec: ModelSpec) -> Limits:
    return Limits(
        max_batch_size=spec.max_batch_size, max_batch_tokens=spec.max_batch_tokens, max_wait_s=spec.max_wait_ms / 1000
    )
