"""What the processes of a service hold: their number, open files, threads and memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests import processes
from tests.faults.service import Service

ALLOWANCE = 24  # processes, files or threads that a long-lived group may have more of at the end of a row
FILES_A_THREAD = 2  # of SQLite, which a thread opens when it first needs the database


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """Of a whole process group."""

    processes: int
    files: int
    threads: int
    memory_mb: float


def of_group(leader: int) -> Holdings:
    pids = processes.of_group(leader)
    return Holdings(
        processes=len(pids),
        files=sum(_count(pid, "fd") for pid in pids),
        threads=sum(_count(pid, "task") for pid in pids),
        memory_mb=sum(map(_resident_mb, pids)),
    )


def of_service(service: Service) -> dict[tuple[str, int], Holdings]:
    """By the name and pid of each program that runs."""
    running = {name: child.pid for name, child in service.children.items() if child.exit_code is None}
    return {(name, pid): of_group(pid) for name, pid in running.items()}


def memory_mb(service: Service) -> dict[str, float]:
    """Resident, by program; the replicas of the first worker on their own."""
    found = {name: held.memory_mb for (name, _), held in of_service(service).items()}
    for place, pid in enumerate(service.replica_pids()):
        found[f"replica {place}"] = _resident_mb(pid)
        found["worker1"] -= found[f"replica {place}"]
    return found


def grown(before: Mapping[tuple[str, int], Holdings], now: Mapping[tuple[str, int], Holdings]) -> list[str]:
    """Groups that lived all the while and hold much more than before."""
    return [
        f"{name} has {more} {what} more than at first"
        for (name, pid), held in now.items()
        if (first := before.get((name, pid)))
        for what in ("processes", "files", "threads")
        if (more := getattr(held, what) - getattr(first, what)) > _allowance(what, held)
    ]


def _allowance(what: str, held: Holdings) -> int:
    return ALLOWANCE + (FILES_A_THREAD * held.threads if what == "files" else 0)


def strays(service: Service) -> list[str]:
    """Living processes of the service that belong to none of its programs."""
    groups = {child.pid for child in service.children.values() if child.exit_code is None}
    known = {pid for group in groups for pid in processes.of_group(group)}
    left = set(processes.of_data_folder(str(service.folder))) - known
    return [f"{pid} {processes.command(pid)}" for pid in left]


def _count(pid: int, folder: str) -> int:
    with suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/{folder}"))
    return 0


def _resident_mb(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0
