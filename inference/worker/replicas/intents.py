"""What operators want of one worker, as its heartbeat has read it. Imported before Django is set up."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorIntents:
    """The wishes of operators that concern one worker."""

    is_drained: bool = False  # it takes nothing new
    paused: frozenset[str] = frozenset()  # models of which nothing is begun
