"""UUIDs out of what they were passed on as: of jobs that share all else they are most of it."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID, SafeUUID

_UNKNOWN = SafeUUID.unknown  # to look it up takes a third of the time


def id_of(number: int) -> UUID:
    """As `UUID(int=number)`, at a third of its cost."""
    made = UUID.__new__(UUID)
    object.__setattr__(made, "int", number)
    object.__setattr__(made, "is_safe", _UNKNOWN)
    return made


def id_of_hex(digits: str | bytes) -> UUID:
    """32 of them. Raises `ValueError` for anything else."""
    number = int(digits, 16)
    if len(digits) != 32 or number < 0:
        raise ValueError(f"not 32 hexadecimal digits: {digits!r:.40}")
    return id_of(number)


def parse_id(text: object) -> UUID | None:
    """Return the id that a text is; None of any other."""
    try:
        return UUID(str(text))
    except ValueError:
        return None


def packed(ids: Iterable[UUID]) -> bytes:
    """For a pipe: a tenth of what pickling them takes."""
    return b"".join([each.bytes for each in ids])


def unpacked(ids: bytes) -> list[UUID]:
    return [id_of(int.from_bytes(ids[start : start + 16], "big")) for start in range(0, len(ids), 16)]
