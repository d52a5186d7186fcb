"""Files that are made of a model's weights once on a machine, and kept: whole or not at all, made by one process.

They are beside the weights, or in the service's data folder if the folder of the weights cannot be written to. Before
new files are made, those are removed that no process uses or has loaded for long.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

# A folder's file with the checksums of its other files: damaged files are made anew. A process that loads the files
# touches it, and locks it while it uses them.
SUMS = "sums.json"
WAIT_S = 300.0  # seconds to wait for another process that makes the same files
LOOK_S = 0.1  # seconds between two tries to lock
IDLE_S = 30 * 86400.0  # seconds; files that no process has loaded for so long are removed

Make = Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class CachedFolder:
    """A folder whose files are whole, and stay until its file `sums` is closed."""

    path: Path
    sums: BinaryIO


def open_cached_folder(homes: Sequence[Path], name: str, make: Make) -> CachedFolder:
    """Return the folder `name` in one of `homes`, filled with files by `make` if it is in none of them.

    It is made in the first of `homes` that can be written to. Raises `OSError` if the files cannot be kept, because of
    a full disk for example.
    """
    for home in homes:
        if found := _find_whole_folder(home / name):
            return found
    home = _choose_home(homes)
    with _hold_lock(home / f"{name}.lock", WAIT_S):
        if found := _find_whole_folder(home / name):  # another process has made it meanwhile
            return found
        _remove_broken_folders(home, name)
        _remove_idle_folders(home)
        _fill_folder(home, name, make)
        if found := _find_whole_folder(home / name):
            return found
    raise OSError(f"{home / name} was damaged as soon as it was made")


def _find_whole_folder(path: Path) -> CachedFolder | None:
    """Return the folder, marked as used; None if it is missing, damaged, or about to be removed."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context((path / SUMS).open("rb"))
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            sums = json.load(file)
            if not all(_checksum_file(path / name) == value for name, value in sums.items()):
                return None
        except (OSError, ValueError, AttributeError):
            return None
        with contextlib.suppress(OSError):  # the file of another user
            os.utime(path / SUMS)
        stack.pop_all()
        return CachedFolder(path, file)


def _checksum_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _choose_home(homes: Sequence[Path]) -> Path:
    for home in homes[:-1]:
        with contextlib.suppress(OSError):
            home.mkdir(exist_ok=True)
            if os.access(home, os.W_OK):
                return home
    homes[-1].mkdir(parents=True, exist_ok=True)
    return homes[-1]


@contextlib.contextmanager
def _hold_lock(path: Path, wait_s: float) -> Iterator[None]:
    """Hold the lock of the file at `path`. Raises `TimeoutError` if it is not free within `wait_s` seconds.

    The lock ends with its process, however that ends. Its file stays, for other processes that wait for it.
    """
    give_up_at = time.monotonic() + wait_s
    with path.open("wb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= give_up_at:
                    raise TimeoutError(f"another process has been making {path.stem} for {wait_s:.0f} s") from None
                time.sleep(LOOK_S)
        yield


def _remove_broken_folders(home: Path, name: str) -> None:
    """Remove the damaged folder, and the unfinished ones that processes left when they were killed."""
    for path in (home / name, *home.glob(f"{name}.part-*")):
        shutil.rmtree(path, ignore_errors=True)


def _remove_idle_folders(home: Path) -> None:
    """Remove folders, finished or not, that no process uses and none has loaded for long."""
    for path in home.iterdir():
        with contextlib.suppress(OSError):  # it is used, or being made, or may not be removed
            if path.is_dir() and time.time() - _read_loaded_at_s(path) > IDLE_S:  # noqa: TID251 - the clock that files have
                with _hold_lock(home / f"{path.name.partition('.part-')[0]}.lock", 0.0), _reserve_folder(path):
                    shutil.rmtree(path)


def _read_loaded_at_s(path: Path) -> float:
    with contextlib.suppress(FileNotFoundError):
        return (path / SUMS).stat().st_mtime
    return path.stat().st_mtime


@contextlib.contextmanager
def _reserve_folder(path: Path) -> Iterator[None]:
    """Keep other processes from beginning to use the folder. Raises `OSError` if a process uses it."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(FileNotFoundError):
            fcntl.flock(stack.enter_context((path / SUMS).open("r+b")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _fill_folder(home: Path, name: str, make: Make) -> None:
    part = Path(tempfile.mkdtemp(prefix=f"{name}.part-", dir=home))
    try:
        make(part)
        (part / SUMS).write_text(json.dumps({file.name: _checksum_file(file) for file in part.iterdir()}))
        for file in part.iterdir():
            _sync_path(file)
        part.chmod(0o755)
        part.rename(home / name)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    _sync_path(home)


def _sync_path(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
