"""Files that a machine makes of a model's weights once, and keeps: whole or not at all, made by one process.

They lie beside the weights, or in the service's data folder where the weights' is not to be written to.
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
from pathlib import Path

SUMS = "sums.json"  # of the other files: what is damaged is made anew
WAIT_S = 300.0  # for another process that makes the same
LOOK_S = 0.1

Make = Callable[[Path], None]


def folder(homes: Sequence[Path], name: str, make: Make) -> Path:
    """The folder `name` in one of `homes`, which `make` fills with files: in the first that can be written to.

    Raises `OSError` when they cannot be kept, of a full disk for example.
    """
    for home in homes:
        if _is_whole(home / name):
            return home / name
    home = _first_writable(homes)
    with _locked(home / f"{name}.lock"):
        if not _is_whole(home / name):  # another process may have made it meanwhile
            _remove_parts(home, name)
            _fill(home, name, make)
    return home / name


def _is_whole(path: Path) -> bool:
    try:
        sums = json.loads((path / SUMS).read_text())
        return all(_sum(path / file) == value for file, value in sums.items())
    except (OSError, ValueError, AttributeError):
        return False


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _first_writable(homes: Sequence[Path]) -> Path:
    for home in homes[:-1]:
        with contextlib.suppress(OSError):
            home.mkdir(exist_ok=True)
            if os.access(home, os.W_OK):
                return home
    homes[-1].mkdir(parents=True, exist_ok=True)
    return homes[-1]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The lock is gone with its process, however that ends."""
    give_up_at = time.monotonic() + WAIT_S
    with path.open("wb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up_at:
                    raise TimeoutError(f"another process has been making {path.stem} for {WAIT_S:.0f} s") from None
                time.sleep(LOOK_S)
        yield


def _remove_parts(home: Path, name: str) -> None:
    """What is damaged, and what a process that was killed has left."""
    for path in (home / name, *home.glob(f"{name}.part-*")):
        shutil.rmtree(path, ignore_errors=True)


def _fill(home: Path, name: str, make: Make) -> None:
    part = Path(tempfile.mkdtemp(prefix=f"{name}.part-", dir=home))
    try:
        make(part)
        (part / SUMS).write_text(json.dumps({file.name: _sum(file) for file in part.iterdir()}))
        for file in part.iterdir():
            _sync(file)
        part.chmod(0o755)
        part.rename(home / name)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    _sync(home)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
