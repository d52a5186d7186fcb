"""Checks of the embedded server's folder: that it can be written, and that the server can read its files.

The rows of the database are the truth. Files that the server cannot read, because another version wrote them or
because they are broken, are set aside: the server starts empty, and the reconciler sends the messages again.
"""

import contextlib
import datetime
import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

logger = logging.getLogger(__name__)

FILES = ("appendonlydir", "appendonly.aof")  # since version 7, and before
KEPT = 3  # folders of files that were set aside
ROOM = 64 * 1024  # bytes that must fit into the folder


class EmbeddedBrokerError(Exception):
    """The server cannot be started; the message says what would help."""


def make_folder_usable(folder: Path, start: Callable[[Path], str]) -> None:
    """Make the folder writable, and set its files aside if they keep the server from starting.

    `start` starts a server on a folder, stops it again, and returns why it did not start, or an empty string.

    Raises `EmbeddedBrokerError`, and leaves the files as they are, if the server does not start for another reason.
    """
    with _translate_os_errors(folder):
        require_writable_folder(folder)
    if any((folder / name).exists() for name in FILES) and (reason := start(folder)):
        with _translate_os_errors(folder):
            _set_aside_if_broken(folder, start, reason)


@contextlib.contextmanager
def _translate_os_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        cure = "Free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "Make the folder writable"
        raise EmbeddedBrokerError(
            f"The broker cannot write to {folder}: {error.strerror}. {cure}, or set REDIS_URL."
        ) from error


def require_writable_folder(folder: Path) -> None:
    """Make the folder, and write a file of `ROOM` bytes to it; raise `OSError` if that fails."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as probe:
        probe.write(bytes(ROOM))
        probe.flush()
        os.fsync(probe.fileno())


def _set_aside_if_broken(folder: Path, start: Callable[[Path], str], reason: str) -> None:
    """Set the files aside if the server starts without them; else raise `EmbeddedBrokerError`."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="empty-") as empty:
        if start(Path(empty)):
            raise EmbeddedBrokerError(f"The broker's server does not start: {reason}")
    kept = _set_files_aside(folder)
    logger.warning(
        "The broker's data cannot be read (%s). It is set aside in %s; accepted jobs are sent again.", reason, kept
    )


def _set_files_aside(folder: Path) -> Path:
    now = datetime.datetime.now(datetime.UTC)  # noqa: TID251 - a name for people; no database is asked yet
    kept = folder / f"unreadable-{now:%Y-%m-%dT%H-%M-%SZ}"
    kept.mkdir(mode=0o700)
    for name in FILES:
        if (folder / name).exists():
            (folder / name).rename(kept / name)
    for old in sorted(folder.glob("unreadable-*"))[:-KEPT]:
        shutil.rmtree(old)
    return kept
