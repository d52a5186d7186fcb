"""The descriptions of exceptions for logs: the type of an exception and where it was raised.

The words of the exception are included only if they are about servers, devices or files. The words of a bug, of a model
or of a refused row may quote an input.
"""

import sqlite3
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from inference.errors import InferenceError

HEADING = "Traceback (own code first, the last call last):"
MOST_TRACE = 4000  # characters
MOST_OWN, MOST_OTHERS = 8, 4  # calls of the model's own code, and of other code, shown of each exception
OURS = ("inference.", "api.", "project.")


def describe_for_logs(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name}: {_get_safe_words(error)}".removesuffix(": ")


def format_exception(error: BaseException | None, trace: TracebackType | None) -> str:
    """Return the traceback of an exception without values, behind those of the exceptions that it came of."""
    blocks = []
    for each in _walk_causes(error):
        frames = traceback.format_tb(trace if each is error else each.__traceback__)
        blocks.append("".join(frames) + describe_for_logs(each))
    return "\n".join(reversed(blocks))


def format_places(
    error: BaseException, words: Callable[[BaseException], str] = lambda error: type(error).__name__
) -> str:
    """Return where an exception was raised, by file and line without values.

    The calls of a model's own code come first, then those of libraries and of this service. The exceptions that it came
    of come last. The text is empty for an exception that was never raised.
    """
    blocks = [HEADING]
    for each in _walk_causes(error):
        frames = traceback.extract_tb(each.__traceback__)
        own = [frame for frame in frames if not frame.filename.startswith(_NOT_OWN)]
        others = [frame for frame in frames if frame.filename.startswith(_NOT_OWN)]
        shown = [*own[-MOST_OWN:], *others[-MOST_OTHERS:]]
        blocks.append("".join(traceback.format_list(shown)) + words(each))
    return "\n".join(blocks)[:MOST_TRACE] if error.__traceback__ else ""


def has_author_frame(error: BaseException) -> bool:
    """Return True if code of the model's author was called on the way to where the exception was raised."""
    frames = (frame for each in _walk_causes(error) for frame, _ in traceback.walk_tb(each.__traceback__))
    return any(not frame.f_code.co_filename.startswith(_NOT_OWN) for frame in frames)


def _walk_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the exception, then the exceptions that it came of."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _list_code_folders() -> Sequence[str]:
    """Return the folders with the code of libraries, of Python and of this service."""
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return [f"{folder}/" for folder in (*found, str(Path(__file__).parents[1]))]


_NOT_OWN = ("<", *_list_code_folders())


def _get_safe_words(error: BaseException) -> str:
    if isinstance(error, InferenceError):
        quotes_nothing = error.retryable  # errors that may pass are about servers and devices
    else:
        quotes_nothing = type(error).__module__.startswith(OURS) or _is_away(error) or isinstance(error, sqlite3.Error)
    return str(error) if quotes_nothing else getattr(error, "strerror", None) or "…"


def _is_away(error: BaseException) -> bool:
    """Return True if a server is away.

    No such error comes up in the web server's main process. It stays without Django, as do the processes that it forks
    until they load their own.
    """
    if "django" not in sys.modules:
        return False
    from inference.connection_retries import is_away

    return is_away(error)
