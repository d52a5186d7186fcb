"""The contract between a pool child and a model that generates: the unit of work is one decoding step.

Rows join while others are being answered and leave as they end, so that nobody waits for the longest neighbour.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

OPEN = object()  # the answer of a row that has not ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a step did for one row."""

    key: Hashable
    text: str = ""  # new text, final: what may still turn into a stop string or another character is held back
    tokens: int = 0  # generated in this step
    answer: Any = OPEN  # once it has ended: as `Engine.predict` answers, or an exception in its place


class Stepper(ABC):
    """Of one loaded model. Called in the thread of its engine, which owns it."""

    capacity: int  # tokens of cache, prompts and what is generated, that all rows share
    context: int | None = None  # tokens of one row at most, prompt and answer, where that is known

    @abstractmethod
    def join(self, key: Hashable, value: Any, parameters: Mapping[str, Any], *, seed: int) -> None:
        """From the next step on, or as soon as there is room. `parameters` as for `Engine.predict`; sampling draws
        from `seed`, unless they name one, so that the same row has the same answer each time, alone and in company.

        Raises `InvalidInput` for what can never run, with the figure that it passes.
        """

    @abstractmethod
    def leave(self, key: Hashable) -> None:
        """Give up a row: cancelled, expired, past its time. One that is not here is none."""

    def finish(self, key: Hashable) -> Progress:
        """End a row before its time, and answer with what it has generated, as one whose tokens are used up.

        Returns the text that was held back, and the answer. Where that is `OPEN`, the service makes one of the text
        that was told. A row that has generated nothing may be asked, too.
        """
        self.leave(key)
        return Progress(key=key)

    @abstractmethod
    def step(self) -> list[Progress]:
        """One step of all rows that are in. A row at fault ends with its error, and the others go on from where they
        were. Raises only what no row is at fault for, such as a device that is lost."""

    @abstractmethod
    def __len__(self) -> int:
        """Rows that are in, or wait for room."""

    @property
    @abstractmethod
    def room(self) -> int:
        """Tokens of cache that no row has, less what those that wait for room will take."""

    @property
    def longest(self) -> int:
        """Tokens of cache that each row takes, where all take as many as the longest; 0 where each takes its own."""
        return 0
