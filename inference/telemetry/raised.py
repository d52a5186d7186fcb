"""What a log tells of an exception: of what type it is and where it was raised. Its words only where they are of
servers, devices and files: those of a bug, of a model or of a refused row may quote an input."""

import sqlite3
import traceback
from types import TracebackType

from inference.errors import InferenceError
from inference.failures import is_away

OURS = ("inference.", "api.", "project.", "billiard.exceptions")  # the last say of what a process died


def said(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name}: {_words(error)}".removesuffix(": ")


def told(error: BaseException | None, trace: TracebackType | None) -> str:
    """With its places, behind those of what it came of, without values."""
    blocks = []
    told_of: set[int] = set()
    while error is not None and id(error) not in told_of:
        told_of.add(id(error))
        blocks.append("".join(traceback.format_tb(trace)) + said(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        trace = error.__traceback__ if error else None
    return "\n".join(reversed(blocks))


def _words(error: BaseException) -> str:
    if isinstance(error, InferenceError):
        quotes_nothing = error.retryable  # what may pass is of servers and devices
    else:
        quotes_nothing = type(error).__module__.startswith(OURS) or is_away(error) or isinstance(error, sqlite3.Error)
    return str(error) if quotes_nothing else getattr(error, "strerror", None) or "…"
