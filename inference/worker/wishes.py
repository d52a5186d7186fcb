"""What operators want of this worker, as its heartbeat has read it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    rests: bool = False  # it takes nothing new
    paused: frozenset[str] = frozenset()  # models of which nothing is begun
