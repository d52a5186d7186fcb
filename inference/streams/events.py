"""What a stream tells. An `id` is what a client that comes back names as its last one: see `positions`."""

from dataclasses import dataclass

from inference.models import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Text that follows what was told before."""

    text: str
    id: str  # of the position behind it
    tokens: int | None = None  # generated so far; None where the row told the text


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """What was told is void, since a new attempt's text is another one: it follows from its first character."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The job is finished; its whole text was told if it has succeeded. The last event."""

    job: Job  # with its output or its error, without its inputs
    text: str | None  # all that was generated; None where there is none, or the output holds no text
    id: str


@dataclass(frozen=True, slots=True)
class Silence:
    """Nothing happened for a while: time to find out whether the client is still there."""


@dataclass(frozen=True, slots=True)
class Cut:
    """This process tells no more, the job goes on: the client comes back with the last id. The last event."""


Event = Delta | Restart | End | Silence | Cut
