"""Which replicas of this worker live and what each has loaded, and so which models the worker can run now.

Belongs to the worker's event loop; other threads read what its properties and `rows` return.
"""

import ctypes
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from inference.failures import Pauses
from inference.worker.calls import ENDED_BY_IT, READY, Loaded
from inference.worker.devices import Plan

logger = logging.getLogger(__name__)

LOADING = "its worker is loading it."
TIMES_AS_LONG = 10  # a child works between two tries to load what all lack
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0


def _pauses() -> Pauses:
    return Pauses(first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)


@dataclass(slots=True)
class Replica:
    """One child after the other on one device. `models` says of each model READY, LOADING, or why not."""

    device: str
    models: dict[str, str]
    notes: Mapping[str, str] = field(default_factory=dict)  # of how its models are run
    pid: int | None = None  # of its living process
    loading: ctypes.c_int = field(default_factory=ctypes.c_int)  # what that process loads now: as the child says
    killers: frozenset[str] = frozenset()  # models that a process ended with while it loaded them
    is_up: bool = False  # its process has told what it loaded
    had: frozenset[str] = frozenset()  # loaded by the process before; unknown again once a load has failed
    told: bool = False  # some process of it has told, or has died of loading
    retry_at: float = 0.0  # monotonic: when it may try again to load what it lacks
    pauses: Pauses = field(default_factory=_pauses)

    @property
    def ready(self) -> frozenset[str]:
        return frozenset(name for name, state in self.models.items() if state == READY) if self.is_up else frozenset()

    def pause(self) -> None:
        self.retry_at = time.monotonic() + self.pauses.next_s()


class Replicas:
    """A call goes to any idle child, so the worker runs what its best child has, and no child that lacks some of it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.replicas: list[Replica] = []
        self._grow(plan.replicas)
        self.serving: frozenset[str] = frozenset()  # what can be run now
        self.tries = _pauses()
        self.try_at = 0.0  # monotonic: when a child that runs what all run may try to load what all lack
        self._said: set[tuple[str, str]] = set()

    def _grow(self, count: int) -> None:
        """`celery control pool_grow` makes more than were planned."""
        for index in range(len(self.replicas), count):
            self.replicas.append(Replica(self.plan.device_of(index), dict.fromkeys(self.plan.models, LOADING)))

    # What happens to the children

    def started(self, index: int, pid: int, loading: ctypes.c_int | None = None) -> None:
        self._grow(index + 1)
        replica = self.replicas[index]
        replica.pid, replica.is_up = pid, False
        replica.loading = ctypes.c_int() if loading is None else loading  # which is false while it is 0

    def loaded(self, loaded: Loaded) -> None:
        """A child says what it has, after its start or after another try."""
        for replica in self.replicas:
            if replica.pid == loaded.pid:
                had = replica.ready
                replica.models, replica.is_up, replica.told, replica.had = dict(loaded.models), True, True, frozenset()
                replica.notes = loaded.notes
                replica.killers = replica.killers - replica.ready if replica.ready else frozenset()
                if len(replica.ready) == len(self.plan.models):
                    replica.pauses.reset()
                else:
                    replica.pause()
                self._tell(replica, loaded.tracebacks)
                if self.serving and replica.ready > self.serving | had:  # so may the others, one by one
                    self.tries.reset()
                    self.try_at = time.monotonic()
        self._choose()

    def ended(self, index: int) -> None:
        """Its process is gone, or must not be given another call. One that was gone already changes nothing."""
        replica = self.replicas[index]
        if replica.pid is None:
            return
        if number := replica.loading.value:
            self._blame(replica, list(self.plan.models)[number - 1])
        if replica.is_up:
            replica.had = replica.ready & self.serving
        else:
            replica.had, replica.told = frozenset(), True
            replica.models = self._ended_loading(replica)
            self._tell(replica, {})
            replica.pause()
        replica.pid, replica.is_up = None, False
        self._choose()

    def _blame(self, replica: Replica, model: str) -> None:
        """Something is always left to be loaded."""
        killers = replica.killers | {model}
        if len(killers) == len(self.plan.models):
            killers = frozenset({model} if len(killers) > 1 else ())
        replica.killers = killers

    def _ended_loading(self, replica: Replica) -> dict[str, str]:
        """What is known of its models: which it was, or nothing."""
        if replica.killers:
            return {name: ENDED_BY_IT if name in replica.killers else LOADING for name in self.plan.models}
        return dict.fromkeys(self.plan.models, "its process ended while it loaded its models.")

    def _choose(self) -> None:
        """The largest set that may be served; the one that is served already among equals."""
        before = self.serving
        sets = [ready for replica in self.replicas if (ready := replica.ready)]
        allowed = [ready for ready in sets if not before or ready <= before or self._is_common(ready)]
        self.serving = max(allowed or sets, key=lambda ready: (len(ready), ready == before), default=frozenset())
        if self.serving != before:
            self.tried()
        if len(self.serving) == len(self.plan.models):
            self.tries.reset()
        if self.serving - before:
            logger.info("worker=%s serves %s", self.plan.worker, ", ".join(sorted(self.serving)))
        if gone := before - self.served:
            logger.error("worker=%s serves no more: %s", self.plan.worker, ", ".join(sorted(gone)))

    def _is_common(self, models: frozenset[str]) -> bool:
        """Whether half of the living have them: the others would be given no more calls."""
        living = [replica for replica in self.replicas if replica.pid is not None]
        return 2 * sum(replica.ready >= models for replica in living) >= len(living)

    def _tell(self, replica: Replica, tracebacks: Mapping[str, str]) -> None:
        """One sentence for each reason, not for each child and try."""
        for name, why in replica.models.items():
            if why != READY and (name, why) not in self._said:
                self._said.add((name, why))
                trace = f"\n{tracebacks[name]}" if name in tracebacks else ""
                logger.error("model=%s not loaded on %s, tried again and again: %s%s", name, replica.device, why, trace)

    # What follows from it

    @property
    def served(self) -> frozenset[str]:
        """What can be run now, or as soon as a child that ended has started again."""
        return self.serving.union(*(replica.had for replica in self.replicas))

    def may_run(self, pid: int) -> bool:
        """Whether this child can be given any call."""
        return any(r.pid == pid and bool(r.ready) and r.ready >= self.serving for r in self.replicas)

    def may_start(self, index: int) -> bool:
        if index >= len(self.replicas):
            return True
        return self.replicas[index].retry_at <= time.monotonic() or self.replicas[index].had != frozenset()

    def without(self, index: int) -> frozenset[str]:
        """What its next process is not to load as it starts: it ended the last one, and no other replica runs it."""
        return self.replicas[index].killers - self.serving if index < len(self.replicas) else frozenset()

    def to_restart(self) -> list[int]:
        """Indexes of the children that lack what others run, or have nothing, when their pause is over."""
        now = time.monotonic()
        return [
            index
            for index, replica in enumerate(self.replicas)
            if replica.is_up and replica.retry_at <= now and replica.pid and not self.may_run(replica.pid)
        ]

    def should_try(self) -> bool:
        """Whether a child that runs what all run is to try again to load what all lack."""
        return 0 < len(self.serving) < len(self.plan.models) and self.try_at <= time.monotonic()

    def next_to_try(self, pids: Collection[int]) -> int | None:
        """Of these children the one that lacks some model and whose last try is longest ago."""
        lacking = [r for r in self.replicas if r.pid in pids and len(r.ready) < len(self.plan.models)]
        return min(lacking, key=lambda replica: replica.retry_at).pid if lacking else None

    def tried(self, took_s: float = 0.0) -> None:
        """The child could run nothing meanwhile: a try that takes long is seldom made."""
        self.try_at = time.monotonic() + max(self.tries.next_s(), took_s * TIMES_AS_LONG)

    @property
    def have_told(self) -> bool:
        """Whether each has loaded what it can, or died of it, once."""
        return all(replica.told for replica in self.replicas)

    def why_not(self) -> dict[str, str]:
        """By model: why a replica could not load it."""
        return {
            name: why
            for replica in self.replicas
            for name, why in replica.models.items()
            if why not in (READY, LOADING)
        }

    def rows(self, refused: Mapping[str, str]) -> dict[str, dict[str, object]]:
        """By index, as the worker's row shows them. `refused`: why the broker keeps these models from them."""
        return {
            str(index): {
                "pid": replica.pid,
                "device": replica.device,
                "models": {**replica.models, **refused},
                "notes": dict(replica.notes),
            }
            for index, replica in enumerate(self.replicas)
        }
