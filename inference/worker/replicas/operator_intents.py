"""The intents of operators for one worker, as its heartbeat has read them.

Imported before Django is set up.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorIntents:
    """The intents of operators that concern one worker."""

    is_drained: bool = False  # the worker takes nothing new
    paused: frozenset[str] = frozenset()  # models of which no job is begun
