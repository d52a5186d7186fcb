"""What runs on this machine, read from /proc. A zombie is dead."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


def side_by_side() -> int:
    """Return how many tests or trials at once keep the cores busy: they wait as much as they compute."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 3


def of_group(group: int) -> list[int]:
    """The living processes of a group."""
    return [pid for pid in living() if _stat(pid)[2] == str(group)]


def parent(pid: int) -> int:
    return int(_stat(pid)[1])


def children(parent: int) -> list[int]:
    return [pid for pid in living() if _stat(pid)[1] == str(parent)]


def of_data_folder(folder: str) -> list[int]:
    """The living processes of the service that has its data there: by their environment, which a server that sets its
    title writes over, or by the folder they work in."""
    entry = f"DATA_DIR={folder}".encode()
    return [pid for pid in living() if entry in _read(pid, "environ").split(b"\0") or _works_in(pid, folder)]


def maps(pid: int) -> str:
    """The files that a process has mapped: its libraries."""
    return _read(pid, "maps").decode()


def resident() -> int:
    """Bytes of this process that are in memory, with what is mapped."""
    return int(_read(os.getpid(), "statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def command(pid: int) -> str:
    return _read(pid, "cmdline").replace(b"\0", b" ").decode()


def _works_in(pid: int, folder: str) -> bool:
    with contextlib.suppress(*GONE):
        return Path(f"/proc/{pid}/cwd").readlink().is_relative_to(folder)
    return False


def living() -> Iterator[int]:
    for name in sorted(filter(str.isdigit, os.listdir("/proc")), key=int):
        if _stat(int(name))[0] not in ("Z", ""):
            yield int(name)


def _stat(pid: int) -> list[str]:
    """State, parent, group and more, or empty strings."""
    return _read(pid, "stat").decode().rpartition(") ")[2].split() or [""] * 3


def _read(pid: int, file: str) -> bytes:
    with contextlib.suppress(*GONE):
        return Path(f"/proc/{pid}/{file}").read_bytes()
    return b""
