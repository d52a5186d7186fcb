"""The events of a stream.

A client that comes back sends the `id` of the last event that it got: see `positions`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inference.models import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Text that follows the text of the earlier events."""

    text: str
    id: str  # of the position behind this text
    tokens: int | None = None  # tokens generated so far; None if the text was read from the row
    scores: Sequence[Any] = ()  # of the tokens that begin in this text, where the job has log probabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """The text sent so far is void, as a new attempt generates another one.

    The text of the new attempt follows from its first character.
    """

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The job is finished, and its whole text was sent if it has succeeded. This is the last event."""

    job: Job  # with its output or its error, without its inputs
    text: str | None  # the whole generated text; None if the job did not succeed or its output holds no text
    id: str


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """A sign of life after a while without text, by which the server finds out if the client is still there."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """This process ends the stream while the job goes on. This is the last event.

    The client comes back with the id of the last event that it got.
    """


Event = Delta | Restart | End | KeepAlive | Interrupted
