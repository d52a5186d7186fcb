"""The living replicas of this worker, what each has loaded, and so which models each of them can run now.

Belongs to the worker's event loop. Other threads read what its properties and `row_values` return.
"""

import itertools
import logging
import math
import time
from collections import Counter
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass

from inference.catalog.specs import Catalog, ModelSpec
from inference.worker.calls import READY, Assignment, ChildCommand, LoadReport, SharedState
from inference.worker.replicas.device_health import DeviceHealth
from inference.worker.replicas.devices import Plan
from inference.worker.replicas.replica import ReplicaState, make_backoff

logger = logging.getLogger(__name__)

TIMES_AS_LONG = 10  # a child works this many times as long as a try took, before it tries again to load what it lacks
SLOW_S = 5.0  # seconds to load a model, above which half of the replicas leave it for later while none runs the others


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorIntents:
    """The intents of operators that concern one worker, as its heartbeat has read them."""

    is_drained: bool = False  # the worker takes nothing new
    paused: frozenset[str] = frozenset()  # models of which no job is begun


class ReplicaRegistry:
    """The replicas of a worker: each child is given calls of the models that it has loaded.

    The worker runs every model that any child has. A new entry of the catalog is loaded beside what runs, by one child
    after the other. Once all children that ran the entry before have the new one, all calls ask for it, and the
    children unload the entry before. Entries are told apart by their digests.
    """

    def __init__(self, plan: Plan, catalog: Catalog, load_s: Mapping[str, float] | None = None) -> None:
        """Make a registry without processes. `load_s` are the expected seconds of loads, by digest, where known."""
        self.plan = plan
        self.catalog: Catalog = dict(catalog)  # the models file's entries for this worker's models
        self.file_digest = ""  # digest of the whole models file that `catalog` is from, set after `catalog`
        self.unneeded_models: frozenset[str] = frozenset()  # models of `catalog` that are to be in no memory now
        self.specs: Catalog = dict(catalog)  # the entries by which jobs run; replaced as a whole
        # By digest: the entries that each child is to have loaded. Those that run come first.
        self.goal: dict[str, ModelSpec] = {spec.digest: spec for spec in catalog.values()}
        self.replicas = [ReplicaState(plan.get_device(index)) for index in range(plan.replicas)]
        self._runs: frozenset[str] = frozenset()  # digests of the entries that some child can run now
        self._load_s = dict(load_s or {})  # by digest: seconds that the last load of the entry took, or may take
        self.runnable: frozenset[str] = frozenset()  # the names of the models that some child can run now
        self.intents = OperatorIntents()  # for this worker
        self.tries = make_backoff()
        self.try_at = 0.0  # monotonic: when a child may try again to load what it lacks
        self.is_closed = False  # The worker leaves, and no child is given another call.
        self.version = 0  # grows with every change
        self._is_settled = False  # every child that is up has what it is to have
        self._said: set[tuple[str, str]] = set()
        self._announced: frozenset[str] = frozenset()  # models that the log says are served
        self.failures: Counter[str] = Counter()  # by digest: tries to load the entry that failed
        self.device_health = DeviceHealth(plan.devices, self._computes)

    # What is to be run

    def set_catalog(self, catalog: Catalog) -> None:
        """Run the models of this catalog from now on.

        A model that it does not list any more is run until `drop_removed_model`.
        """
        self.catalog = dict(catalog)
        self._try_anew()

    def note_file_digest(self, digest: str) -> None:
        """Note the digest of the models file that the catalog is from. It is noted after the catalog."""
        self.file_digest = digest

    def set_unneeded_models(self, names: Collection[str]) -> None:
        """Stop running these models and unload them; all others are to be loaded.

        Failures to load one of these models are forgotten.
        """
        self.unneeded_models = frozenset(names)
        self._try_anew()
        for replica in self.replicas:
            replica.forget_obsolete_failures(self.goal.keys())

    def drop_removed_model(self, name: str) -> None:
        """Stop running a model that is not in the catalog any more and has no jobs left."""
        self.specs = {other: spec for other, spec in self.specs.items() if other != name}
        logger.info("worker=%s model=%s is gone from the models file, and no job of it is left", self.plan.worker, name)
        self._choose_entries()

    @property
    def removed_models(self) -> frozenset[str]:
        """The models that are not in the catalog, and run for the jobs that they still have."""
        return frozenset(self.specs.keys() - self.catalog.keys())

    def _try_anew(self) -> None:
        self.tries.reset()
        self.try_at = time.monotonic()
        self._choose_entries()

    def apply_pauses_and_drain(self, intents: OperatorIntents) -> None:
        """Apply the intents of operators.

        No job of a model that is held back is begun from now on. The model stays in memory, and is served as soon as
        the intents allow it.
        """
        if intents != self.intents:
            self.intents = intents
            self.version += 1

    @property
    def paused_or_drained_models(self) -> frozenset[str]:
        names = frozenset(self.specs.keys() | self.catalog.keys())
        return names if self.intents.is_drained else names & self.intents.paused

    @property
    def unpaused_models(self) -> frozenset[str]:
        """The models of which jobs are begun now."""
        return (
            self.runnable - self.paused_or_drained_models
            if self.intents.is_drained or self.intents.paused
            else self.runnable
        )

    # What happens to the children

    def note_start(self, index: int, pid: int, assignment: Assignment = (), shared: SharedState | None = None) -> None:
        self.replicas[index].note_start(pid, assignment, shared or SharedState())

    def note_failed_start(self, index: int, error: Exception) -> None:
        """Note that no process could be started for a replica, by no fault of a model."""
        replica = self.replicas[index]
        digests = [spec.digest for spec in self.specs.values()]
        replica.note_missing_report(dict.fromkeys(digests, f"its process could not be started: {error}"))
        self.failures.update(digests)
        pause_s = replica.retry_at - time.monotonic()
        logger.error(
            "worker=%s replica %d not started, tried again in %.1f s: %r", self.plan.worker, index, pause_s, error
        )
        self._choose_entries()

    def note_loaded_models(self, loaded: LoadReport) -> None:
        """Note what a child has loaded, as it reports after its start or after an assignment."""
        for replica in self.replicas:
            if replica.pid == loaded.pid:
                is_first, had = not replica.is_up, replica.ready
                replica.note_report(loaded, self.goal.keys())
                self._load_s.update(loaded.load_s)
                if is_first and not self.goal.keys() <= replica.ready:
                    self.postpone_next_try()
                self.failures.update(key for key, state in loaded.models.items() if state != READY)
                self._log_failures(replica, loaded.tracebacks)
                if not is_first and replica.ready - had:  # the other children may now try the same, one by one
                    self.tries.reset()
                    self.try_at = time.monotonic()
        self._choose_entries()

    def note_partial_load(self, loaded: LoadReport) -> bool:
        """Note what a child that starts has loaded so far, if it is to run that before its next load.

        Return True if it is: some of it is to be run, and no other child runs that. It is given calls then until
        `note_next_load`.
        """
        run_by_others = frozenset[str]().union(*(other.ready for other in self._list_able_replicas()))
        if self.is_closed or loaded.ready & self.goal.keys() <= run_by_others:
            return False
        for replica in self.replicas:
            if replica.pid == loaded.pid and not replica.has_ended_between_loads:
                replica.note_partial_load(loaded)
                self._load_s.update(loaded.load_s)
        self._choose_entries()
        if self.can_child_take_call(loaded.pid):
            return True
        self.note_next_load(loaded.pid, 0.0)
        return False

    def note_next_load(self, pid: int, after_s: float) -> None:
        """Note that a child that starts loads its next model, after it was given calls for `after_s` seconds."""
        for replica in self.replicas:
            if replica.pid == pid and replica.ready:
                replica.note_next_load(after_s)
                self._choose_entries()

    def note_end(self, index: int) -> None:
        """Note that the process of a replica is gone, or must not be given another call.

        If it was gone already, nothing changes.
        """
        replica = self.replicas[index]
        if replica.pid is None:
            return
        had = frozenset[str]()
        if killer := replica.loading_digest:
            had = replica.had - {killer}
            self.failures[killer] += 1
            replica.note_fatal_load(killer, self.goal.keys())
        if replica.is_up or replica.ready:
            replica.has_ended_between_loads = not replica.is_up
            had = replica.had | (replica.ready & self._runs)
            if self.can_child_take_call(replica.pid):
                replica.count_end()
        else:
            replica.note_missing_report(self._explain_failed_load(replica), had)
            self.failures.update(replica.models.keys())
            self._log_failures(replica, {})
        replica.note_end(had)
        self._choose_entries()

    def mark_unkillable(self, pid: int) -> None:
        """Note that a process cannot be ended, so that no other one takes its place."""
        for index, replica in enumerate(self.replicas):
            if replica.pid == pid:
                self.note_end(index)
                replica.note_unkillable(self.goal)
                self._choose_entries()

    def _explain_failed_load(self, replica: ReplicaState) -> dict[str, str]:
        """Return, by digest, why entries are not loaded after a process ended while it loaded them.

        These are the entries that ended it, if they are known, or else all that it was to load.
        """
        if replica.killers:
            return dict.fromkeys(replica.killers, replica.why_ended)
        return dict.fromkeys(replica.assigned_digests, "its process ended while it loaded its models.")

    def _choose_entries(self) -> None:
        """Find which entries are run now, and which ones each child is to have."""
        self.version += 1
        served = self.served_models
        self._switch_entries()
        wanted = (*self.specs.values(), *self.catalog.values())
        self.goal = {spec.digest: spec for spec in wanted if spec.name not in self.unneeded_models}
        current = frozenset(spec.digest for spec in self.specs.values() if spec.name not in self.unneeded_models)
        self._runs = current.intersection(itertools.chain.from_iterable(replica.ready for replica in self.replicas))
        self.runnable = self._list_models(self._runs)
        new = self.runnable - self._announced
        self._announced = (self._announced | self.runnable) & self.served_models
        if all(self.goal.keys() <= replica.ready for replica in self.replicas):
            self.tries.reset()
        if new:
            logger.info("worker=%s serves %s", self.plan.worker, ", ".join(sorted(new)))
        self._is_settled = all(replica.ready == self.goal.keys() for replica in self.replicas if replica.is_up)
        if gone := (served - self.served_models) & self.catalog.keys() - self.unneeded_models:
            logger.error("worker=%s no longer serves: %s", self.plan.worker, ", ".join(sorted(gone)))

    def _switch_entries(self) -> None:
        """Switch each model to its entry in the catalog, if nothing is lost by that.

        Nothing is lost if all replicas that run the entry before have the new one, or if none has or had that entry.
        """
        before, loaded = self.specs, frozenset[str]().union(*(replica.ready | replica.had for replica in self.replicas))
        kept = {
            name: spec for name, spec in before.items() if spec.digest in loaded and name not in self.unneeded_models
        }
        taken = {name for name, spec in self.catalog.items() if name not in kept or self._all_have(spec, kept[name])}
        after = {name: self.catalog[name] if name in taken else kept[name] for name in (*self.catalog, *kept)}
        if after == before:
            return
        self.specs = after
        for name in taken & before.keys():
            old, new = before[name].digest, after[name].digest
            if old != new and old in self._runs:
                logger.info("worker=%s model=%s is run by its new entry from now on", self.plan.worker, name)

    def _all_have(self, spec: ModelSpec, before: ModelSpec) -> bool:
        """Return True if all replicas that have or had the entry `before` have this one too, and at least one has."""
        able = [replica for replica in self.replicas if not self._is_withdrawn(replica)]
        known = [replica.ready | replica.had for replica in able if before.digest in replica.ready | replica.had]
        is_run = any(spec.digest in replica.ready for replica in able)
        return is_run and all(spec.digest in entries for entries in known)

    def _log_failures(self, replica: ReplicaState, tracebacks: Mapping[str, str]) -> None:
        """Log one sentence for each reason, not for each child and try."""
        for key, spec in self.goal.items():
            why = replica.models.get(key, READY)
            if why != READY and (key, why) not in self._said:
                self._said.add((key, why))
                trace = f"\n{tracebacks[key]}" if key in tracebacks else ""
                logger.error(
                    "model=%s not loaded on %s, tried again and again: %s%s", spec.name, replica.device, why, trace
                )

    # What follows from it

    @property
    def served_models(self) -> frozenset[str]:
        """The models that can be run now, or as soon as a child that ended has started again."""
        runs = self._runs.union(*(replica.had for replica in self.replicas))
        return self._list_models(runs) - self.unneeded_models

    def _list_models(self, digests: Set[str]) -> frozenset[str]:
        """Return the models whose jobs run by one of these entries."""
        return frozenset(spec.name for spec in self.specs.values() if spec.digest in digests)

    def has_failed_successor(self, spec: ModelSpec) -> bool:
        """Return True if there is a newer entry that some replica could not load."""
        newer = self.catalog.get(spec.name, spec)
        return newer.digest != spec.digest and self.find_load_failure(newer) != ""

    def find_load_failure(self, spec: ModelSpec) -> str:
        """Return why a replica could not load this entry; empty if none failed."""
        states = (replica.models.get(spec.digest, READY) for replica in self.replicas)
        return next((state for state in states if state != READY), "")

    def can_child_take_call(self, pid: int) -> bool:
        """Return True if this child can be given a call."""
        return bool(self._list_runnable_entries(pid))

    def find_models_child_lacks(self, pid: int) -> frozenset[str]:
        """Return the models that are run and that this child cannot be given a call of."""
        return self._list_models(self._runs - self._list_runnable_entries(pid))

    def _list_runnable_entries(self, pid: int) -> frozenset[str]:
        """Return the digests of the entries that this child can be given calls of."""
        able = (replica for replica in self.replicas if replica.pid == pid and not self._is_withdrawn(replica))
        return next((replica.ready & self._runs for replica in able), frozenset())

    @property
    def models_runnable_without_load(self) -> frozenset[str]:
        """The models of which a replica begins a batch now, or once its batch ends.

        A replica that is loading does not count, as a load may take an hour.
        """
        able = (replica.ready for replica in self._list_able_replicas())
        return self._list_models(self._runs.intersection(itertools.chain.from_iterable(able)))

    def _is_withdrawn(self, replica: ReplicaState) -> bool:
        return self.device_health.compute_withdrawn_s(replica.device) > 0.0

    def _computes(self, device: str, instead_of: str) -> bool:
        """Return True if a device has what is run on another, or had it and starts again."""
        has, needed = (
            frozenset[str]().union(*(r.ready | r.had for r in self.replicas if r.device == each))
            for each in (device, instead_of)
        )
        return bool(has) and has >= needed & self._runs

    def find_device(self, pid: int) -> str:
        return next((replica.device for replica in self.replicas if replica.pid == pid), "")

    def can_child_work_ahead(self, pid: int) -> bool:
        """Return True if this child can be given more calls than the one that it runs."""
        return self.can_child_take_call(pid) and any(
            r.pid == pid and r.is_up and self.plan.works_ahead(i) for i, r in enumerate(self.replicas)
        )

    def find_child_shared_state(self, pid: int) -> SharedState | None:
        return next((replica.shared for replica in self.replicas if replica.pid == pid), None)

    def generates_by_steps(self, model: str) -> bool:
        """Return True if a replica generates with this model step by step.

        Jobs of any parameters run together then.
        """
        spec = self.specs.get(model)
        return spec is not None and any(spec.digest in replica.steps for replica in self.replicas)

    def send_step_command(self, pid: int, command: ChildCommand) -> None:
        """Send a command to a child that generates step by step.

        Nothing is sent once the worker leaves: the command stays `DRAIN` then.
        """
        shared = self.find_child_shared_state(pid)
        if shared and not self.is_closed:
            shared.command = command

    def drain_children(self) -> None:
        """Have all children run their open batches to the end, as no call follows."""
        self.is_closed = True
        for replica in self.replicas:
            replica.shared.command = ChildCommand.DRAIN

    @property
    def able_child_count(self) -> int:
        """The number of children that can be given a call, now or after the one that they run."""
        return sum(replica.pid is not None and self.can_child_take_call(replica.pid) for replica in list(self.replicas))

    def may_start(self, index: int) -> bool:
        replica = self.replicas[index]
        if self._is_withdrawn(replica):
            return False
        return replica.retry_at <= time.monotonic() or replica.had != frozenset()

    def make_first_assignment(self, index: int) -> Assignment:
        """Return the entries that the next process of this replica is to load as it starts, in this order.

        Those that load quickest come first, and those of which nothing is known last. An entry that ended the process
        before is tried later, beside the work. If entries that load quickly were run and no replica runs them now, half
        of the replicas leave those that load slowly for later, and to the replicas that are loading them.
        """
        without = self.replicas[index].killers
        keys = sorted(self.goal, key=lambda key: self._load_s.get(key, math.inf))
        assignment = tuple(self.goal[key] for key in keys if key not in without)
        slow = {spec.digest for spec in assignment if self._load_s.get(spec.digest, 0.0) > SLOW_S}
        quick = tuple(spec for spec in assignment if spec.digest not in slow)
        lost = frozenset[str]().union(*(replica.had for replica in self.replicas)) - self._runs
        if lost.isdisjoint(spec.digest for spec in quick):
            return assignment
        starting = [
            replica.assigned_digests for replica in self.replicas if replica.pid is not None and not replica.is_up
        ]
        load_it = sum(slow <= set(digests) for digests in starting)
        return quick if load_it > len(starting) - load_it else assignment

    def _list_able_replicas(self) -> list[ReplicaState]:
        """Return the replicas that run what they have loaded, now or after the call that they run."""
        return [replica for replica in self.replicas if not replica.is_loading and not self._is_withdrawn(replica)]

    def find_child_to_assign(self, pids: Collection[int]) -> int | None:
        """Return the pid of the first of these children that is to unload or load something; None if there is none."""
        following = self._find_next_assignment(pids)
        return following[0].pid if following else None

    def begin_next_assignment(self, pids: Collection[int]) -> tuple[int, Assignment] | None:
        """Return the pid of the child of `find_child_to_assign`, and what it is to have loaded; None if there is none.

        These children run nothing now.
        """
        if (following := self._find_next_assignment(pids)) is None:
            return None
        replica, keys = following
        if not keys <= replica.ready:
            self.postpone_next_try()
        assignment = tuple(spec for key, spec in self.goal.items() if key in keys)
        replica.note_assignment(assignment)
        return replica.pid or 0, assignment

    def _find_next_assignment(self, pids: Collection[int]) -> tuple[ReplicaState, Set[str]] | None:
        if self._is_settled:
            return None
        up = [replica for replica in self.replicas if replica.is_up and replica.pid in pids]
        goal = self.goal
        for replica in up:
            if replica.ready - goal.keys():
                return replica, replica.ready & goal.keys()
        # A child whose last load failed comes last, so that another one tries a lazy model the next time.
        free = sorted(filter(self._can_be_spared, up), key=lambda replica: replica.retry_at)
        for replica in free:
            if untried := self._list_untried_entries(replica):
                return replica, replica.ready | untried
        lacking = [
            replica
            for replica in free
            if self.can_child_take_call(replica.pid or 0) and not goal.keys() <= replica.ready
        ]
        if lacking and self.try_at <= time.monotonic():
            replica = min(lacking, key=lambda replica: replica.retry_at)
            return replica, replica.ready | self._select_entries_to_try(replica)
        return None

    def _select_entries_to_try(self, replica: ReplicaState) -> frozenset[str]:
        """Return the digests of the entries that this child is to try again.

        Entries that ended a process come after all others, and each alone.
        """
        lacking = self.goal.keys() - replica.ready
        killers, others = lacking & replica.killers, lacking - replica.killers
        if killers and others <= set(replica.assigned_digests):
            return frozenset({min(killers, key=lambda key: (self.failures[key], key))})
        return frozenset(others)

    def _list_untried_entries(self, replica: ReplicaState) -> frozenset[str]:
        """Return the digests of the entries that this child was never assigned.

        Entries that another child could not load are not among them. They are tried in turn, with pauses.
        """
        tried = replica.models.keys() | {
            key for other in self.replicas for key, why in other.models.items() if why != READY
        }
        return frozenset(self.goal.keys() - tried)

    def _can_be_spared(self, replica: ReplicaState) -> bool:
        """Return True if other children run meanwhile what this one runs, or if none of them will soon.

        None of them will soon if none is starting, or has ended and starts again. A single child pauses.
        """
        others = [other for other in self.replicas if other is not replica]
        able = [other.ready for other in others if other.is_up and not self._is_withdrawn(other)]
        is_one_to_come = any(not other.is_up and (other.pid is not None or other.had) for other in others)
        return not is_one_to_come or replica.ready & self._runs <= frozenset[str]().union(*able)

    def find_children_to_restart(self) -> list[int]:
        """Return the indexes of the children that can be given no call and whose pause is over."""
        now = time.monotonic()
        return [
            index
            for index, replica in enumerate(self.replicas)
            if replica.is_up
            and replica.retry_at <= now
            and replica.pid
            and not self.can_child_take_call(replica.pid)
            and self.goal
            and not self._list_untried_entries(replica)
        ]

    def postpone_next_try(self, took_s: float = 0.0) -> None:
        """Note a try to load what a child lacks, and set the time of the next one.

        The child can run nothing during a try, so tries that take long are seldom made.
        """
        self.try_at = time.monotonic() + max(self.tries.take_next_pause_s(), took_s * TIMES_AS_LONG)

    @property
    def have_all_reported(self) -> bool:
        """True if each replica has once loaded what it can, or died of loading."""
        return all(replica.has_reported for replica in self.replicas)
