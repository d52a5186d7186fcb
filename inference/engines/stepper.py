"""The contract between a child process and a model that generates: the unit of work is one decoding step.

Rows join while others are being answered, and leave as they end, so that no row waits for its longest neighbour.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OPEN = object()  # the answer of a row that has not ended
TokenLogprob = tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]  # a token of `details`, the likeliest in its place


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The result of a step for one row."""

    key: Hashable
    text: str = ""  # new text that is final: what may still become a stop string or another character is held back
    tokens: int = 0  # tokens generated in this step
    scores: Sequence[TokenLogprob] = ()  # of each token whose text begins in `text`, where log probabilities are wanted
    answer: Any = OPEN  # of a row that has ended: an answer as of `Engine.predict`, or an exception in its place


class Stepper(ABC):
    """The stepper of one loaded model. It is called in the thread of its engine, which owns it."""

    capacity: int  # tokens of cache that all rows share, for prompts and what is generated
    context: int | None = None  # most tokens of one row, prompt and answer; None where that is not known

    @abstractmethod
    def join(self, key: Hashable, value: Any, parameters: Mapping[str, Any], *, seed: int) -> None:
        """Add a row, which runs from the next step on, or as soon as there is room.

        `parameters` are those of `Engine.predict`. Sampling draws from `seed`, unless the parameters name a seed, so
        that the same row has the same answer each time, alone and beside other rows.

        Raises `InvalidInput` if the row can never run, with the figure that it exceeds.
        """

    @abstractmethod
    def leave(self, key: Hashable) -> None:
        """Give up a row that is cancelled, expired or past its time. A row that is not here is ignored."""

    def finish(self, key: Hashable) -> Progress:
        """End a row before its time, and answer with what it has generated, as if its tokens were used up.

        The result has the text that was held back, and the answer. If that is `OPEN`, the service makes an answer of
        the text of all steps. The row may have generated nothing yet.
        """
        self.leave(key)
        return Progress(key=key)

    @abstractmethod
    def step(self) -> list[Progress]:
        """Run one step of all rows that have joined, and return their progress.

        A row at fault ends with its error, and the others go on from where they were. It raises only errors that no
        row is at fault for, such as the loss of the device.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows that run or wait for room."""

    @property
    @abstractmethod
    def room(self) -> int:
        """The tokens of cache that no row has, less those that the rows that wait for room will take."""

    @property
    def tokens_per_row(self) -> int:
        """The tokens of cache that each row takes where all take as many as the longest; 0 where each takes its own."""
        return 0
