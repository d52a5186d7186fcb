"""UUIDs read from text: what a client may have sent, and, fast, what this service has written.

Speed matters since ids are most of what is passed on of jobs that share all else.
"""

from __future__ import annotations

from uuid import UUID


def make_uuid_from_hex(digits: str | bytes) -> UUID:
    """Return the UUID of 32 hexadecimal digits. Raises `ValueError` for anything else."""
    number = int(digits, 16)
    if len(digits) != 32 or number < 0:
        raise ValueError(f"not 32 hexadecimal digits: {digits!r:.40}")
    return UUID(int=number)


def parse_uuid(text: object) -> UUID | None:
    """Return the UUID that a text is, or None if it is none."""
    try:
        return UUID(str(text))
    except ValueError:
        return None
