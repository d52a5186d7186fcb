"""Starts the programs of a system, knows what all their processes cost, and leaves none behind. Linux only: /proc."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
GRACE_S = 15.0
IDLE_SHARE = 0.3  # of one core: a system that uses less has finished starting
Command = Sequence[str]


class StartFailed(Exception):
    """A system did not come up; the message ends with what it logged last."""


def adopt_orphans() -> None:
    """What a system's processes leave behind becomes a child of this process: seen, counted and ended."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def descendants() -> list[int]:
    """The processes below this one."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := stat(int(entry))):
            children.setdefault(int(fields[1]), []).append(int(entry))
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; [] when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def group_of(leader: int) -> list[int]:
    """The processes of its group."""
    pids = map(int, filter(str.isdigit, os.listdir("/proc")))
    return [pid for pid in pids if (fields := stat(pid)) and int(fields[2]) == leader]


def cpu_seconds(pids: Iterable[int] | None = None) -> float:
    """Of these processes, or of all below this one, and of those of their children that have ended."""
    found = descendants() if pids is None else pids
    ticks = (sum(map(int, fields[11:15])) for pid in found if (fields := stat(pid)))
    return sum(ticks) / TICKS_PER_S


def resident_bytes(pids: Iterable[int] | None = None) -> int:
    """Proportional set size of these processes, or of all below this one: what is shared counts once."""
    total = 0
    for pid in descendants() if pids is None else pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024


@dataclass
class Programs:
    """The running programs of one system."""

    log: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    data: Path | None = None  # the folder of what it keeps

    def require_alive(self) -> None:
        for process in self.started:
            if process.poll() is not None:
                raise self.failure(f"{process.args!r} ended with {process.returncode}")

    def failure(self, what: str) -> StartFailed:
        return failure(what, self.log)


def failure(what: str, log: Path) -> StartFailed:
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
    return StartFailed(f"{what}. The end of {log}:\n{tail}")


@contextlib.contextmanager
def running(commands: Sequence[Command], environment: Mapping[str, str], log: Path, folder: Path) -> Iterator[Programs]:
    """Run `commands` in `folder` until the end of the block; then nothing of them is left."""
    log.parent.mkdir(parents=True, exist_ok=True)
    programs = Programs(log)
    try:
        with log.open("w") as output:
            for command in commands:
                process = subprocess.Popen(
                    command,
                    env={**os.environ, **environment},
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                programs.started.append(process)
        yield programs
    finally:
        stop(programs.started)


def stop(started: Sequence[subprocess.Popen[bytes] | subprocess.Popen[str]]) -> None:
    """Ask the programs to end, the youngest first, and kill what is left after the grace time."""
    deadline = time.monotonic() + GRACE_S
    for process in reversed(started):
        process.terminate()
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
    for process in started:
        process.poll()
    while left := descendants():
        for pid in left:
            end(pid)
        time.sleep(0.02)


def end(pid: int) -> None:
    """Kill a process, and collect it when it is, or has become, a child of this one."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def settle(limit_s: float = 30.0) -> None:
    """Wait until the system is idle: other workers may still load their model when the first one answers."""
    deadline = time.monotonic() + limit_s
    before = cpu_seconds()
    while time.monotonic() < deadline:
        time.sleep(0.5)
        now = cpu_seconds()
        if now - before < 0.5 * IDLE_SHARE:
            return
        before = now


def talking(command: Command, environment: Mapping[str, str], log: Path, folder: Path) -> subprocess.Popen[str]:
    """A program that reads lines and answers with lines."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as errors:
        return subprocess.Popen(
            command,
            env={**os.environ, **environment},
            cwd=folder,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
