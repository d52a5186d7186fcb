"""The decision which lazy models to load and which to unload now.

The models for which jobs wait stand in a line, in the order of their turns. The first of them is loaded as soon as
there is room for it. Models without work, and those whose turn is over, are unloaded to make room. A model further
back is loaded before the first only where it takes room that the first does not need.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TURN = 8.0  # load times for which a model with work may stay while others wait
LINGER = 0.25  # load times for which a model without work may stay: its clients may be about to send more
SHORTEST_LOAD_S = 0.5  # seconds; a model that loads faster is not unloaded sooner
STEP_S = 30.0  # seconds that a model waits longer for its turn than one whose jobs have the priority above


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A lazy model as the policy sees it."""

    name: str
    memory: int  # bytes that it takes
    load_s: float  # seconds that loading it takes
    idle_unload_s: float
    loaded_at_s: float | None = None  # None: it is not in memory
    worked_at_s: float = -math.inf  # time at which it last had work, if it is in memory
    is_working: bool = False
    is_kept: bool = False  # True if it has begun jobs that must end here, and so may not be unloaded
    waits_since_s: float | None = None  # time since which it waits to be loaded; None: no job of it waits
    priority: int = 2  # priority of its first waiting job; a smaller number goes first
    not_before_s: float = -math.inf  # time before which it is not loaded again after a load that failed

    @property
    def turn_key(self) -> tuple[float, str]:
        return (self.waits_since_s or 0.0) + STEP_S * self.priority, self.name

    def compute_earliest_unload_s(self) -> float:
        """Return the time from which it may be unloaded for models that wait."""
        load_s, loaded_at_s = max(self.load_s, SHORTEST_LOAD_S), self.loaded_at_s or 0.0
        if self.is_kept:
            return math.inf
        turn_ends_s = loaded_at_s + TURN * load_s
        return turn_ends_s if self.is_working else min(turn_ends_s, self.worked_at_s + LINGER * load_s)

    def is_idle(self, now_s: float) -> bool:
        return not (self.is_working or self.is_kept) and self.worked_at_s + self.idle_unload_s <= now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The models to unload, and the model to load after that."""

    unload: tuple[str, ...] = ()
    load: str | None = None


def choose_change(models: Iterable[Model], *, room: int, now_s: float) -> Change:
    """Return the models to unload and to load now, where lazy models have `room` bytes.

    The caller asks again and again, but not while a change is being made.
    """
    models = sorted(models, key=lambda model: model.turn_key)
    inside = sorted((m for m in models if m.loaded_at_s is not None), key=lambda model: _make_leaving_key(model, now_s))
    unload = [m for m in inside if m.is_idle(now_s) or (m.memory > room and not m.is_kept)]
    inside = [m for m in inside if m not in unload]
    over = _select_to_free(
        [m for m in inside if not m.is_kept], _sum_memory(inside) - room
    )  # they take more than was estimated
    inside = [m for m in inside if m not in over]
    load, leaving = _choose_load(_list_loadable_models(models, room, now_s), inside, room - _sum_memory(inside), now_s)
    if load:
        over = _drop_needless_unloads(over, room - _sum_memory(inside) + _sum_memory(leaving) - load.memory)
    return Change(unload=tuple(m.name for m in (*unload, *over, *leaving)), load=load.name if load else None)


def _list_loadable_models(models: Iterable[Model], room: int, now_s: float) -> list[Model]:
    """Return the models that wait for their turn and can have it, in the given order."""
    waiting = (m for m in models if m.loaded_at_s is None and m.waits_since_s is not None)
    return [m for m in waiting if m.memory <= room and m.not_before_s <= now_s]


def _choose_load(
    line: Sequence[Model], inside: Sequence[Model], free: int, now_s: float
) -> tuple[Model | None, Sequence[Model]]:
    """Return the model to load, or None, and the models to unload for it."""
    if not line:
        return None, ()
    first, *others = line
    leaving = _select_to_free(inside, first.memory - free)
    if all(m.compute_earliest_unload_s() <= now_s for m in leaving):
        return first, leaving
    spare = min(free, free + _sum_memory(leaving) - first.memory)
    return next((m for m in others if m.memory <= spare), None), ()


def _make_leaving_key(model: Model, now_s: float) -> tuple[float, bool, float]:
    """Return the sort key of the order in which models are unloaded.

    Models that may leave now come first. Of these, models without work come before those with work: the ones that had
    none for longest first, then the ones that were loaded first.
    """
    since_s = model.loaded_at_s if model.is_working else model.worked_at_s
    return max(0.0, model.compute_earliest_unload_s() - now_s), model.is_working, since_s or 0.0


def _select_to_free(models: Iterable[Model], needed: int) -> list[Model]:
    """Return the first of the models that free `needed` bytes together, without those that are not needed for it."""
    found: list[Model] = []
    for model in models:
        if _sum_memory(found) >= needed:
            break
        found.append(model)
    for model in reversed(found):
        if _sum_memory(found) - model.memory >= needed:
            found.remove(model)
    return found


def _drop_needless_unloads(models: Iterable[Model], free: int) -> list[Model]:
    """Return the models that must still be unloaded where `free` bytes are left: those that fit into them stay."""
    left = list(models)
    for model in reversed(list(left)):
        if model.memory <= free:
            left.remove(model)
            free -= model.memory
    return left


def _sum_memory(models: Iterable[Model]) -> int:
    return sum(model.memory for model in models)
