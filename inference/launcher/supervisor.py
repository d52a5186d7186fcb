"""Keeps programs running: each in a process group of its own, restarted with back-off, stopped in reverse order.

Nothing outlives the supervisor: on its end, also by SIGKILL, the guard process ends what is left.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from inference.launcher import reaper

OPEN_FILES = 8192  # many waiting connections, and three files a thread for SQLite
FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 30.0
STABLE_S = 60.0  # a program that ran for this long starts again without delay

Log = Callable[[str, str], None]  # program's name, line


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run. `command` starts with the executable's path."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)  # added to this process's
    grace_s: float = 15.0  # from SIGTERM to SIGKILL


def python_module(*arguments: str) -> tuple[str, ...]:
    """`python -m ...`: the scripts of a virtual environment break when its path is long."""
    return (sys.executable, "-m", *arguments)


def broker_program(*, data: Path, socket: Path) -> Program:
    """The embedded server, with its data in the folder `data`."""
    command = python_module("inference.broker.embedded", "--data", str(data), "--socket", str(socket))
    return Program(name="broker", command=command, grace_s=10.0)


def web_program(*, host: str, port: int, blocking_threads: int = 512) -> Program:
    options = ("--interface", "wsgi", "--host", host, "--port", str(port), "--no-ws", "--log-level", "error")
    threads = ("--blocking-threads", str(blocking_threads), "--backlog", "2048", "--workers-kill-timeout", "10")
    command = python_module("granian", *options, *threads, "project.wsgi:application")
    return Program(name="web", command=command)


def worker_program(*, name: str = "worker", devices: str = "auto", options: tuple[str, ...] = ()) -> Program:
    celery = ("celery", "--quiet", "-A", "project", "worker", "--without-mingle", "--without-gossip")
    own = ("--loglevel", os.environ.get("LOG_LEVEL", "INFO"), "-n", f"{name}@%h", "--devices", devices)
    return Program(name=name, command=python_module(*celery, *own, *options), grace_s=30.0)


def webhooks_program() -> Program:
    """Calls clients' servers, and runs no model."""
    return Program(name="webhooks", command=(sys.executable, "manage.py", "deliver_webhooks"), grace_s=20.0)


def raise_open_files_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def describe_exit(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class Guard:
    """The process that ends the groups it knows when this one is gone."""

    def __init__(self) -> None:
        command = [sys.executable, "-S", str(Path(reaper.__file__))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, bufsize=1, start_new_session=True)

    def add(self, group: int, grace_s: float) -> None:
        self._tell(f"+ {group} {grace_s}")

    def remove(self, group: int) -> None:
        self._tell(f"- {group}")

    def close(self) -> None:
        """End the groups that are left, and the guard."""
        if self.process.stdin:
            self.process.stdin.close()
        self.process.wait()

    def _tell(self, line: str) -> None:
        if self.process.stdin and self.process.poll() is None:
            self.process.stdin.write(line + "\n")


class Child:
    """One running program, whose output goes to `log` line by line."""

    def __init__(self, program: Program, log: Log, watch: Guard) -> None:
        self.program = program
        self.watch = watch
        self.started_s = time.monotonic()
        self.process = subprocess.Popen(
            program.command,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **program.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches the supervisor only, which stops all in order
        )
        watch.add(self.pid, program.grace_s)
        self.pump = threading.Thread(target=self._pump, args=(log,), name=f"log-{program.name}", daemon=True)
        self.pump.start()

    @property
    def pid(self) -> int:
        """Also the id of its process group."""
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def terminate(self) -> None:
        if self.exit_code is None:
            self.process.terminate()

    def stop(self, hurry: threading.Event | None = None) -> int:
        """Its exit code. What still runs after its grace time, or once `hurry` is set, is killed."""
        self.terminate()
        deadline = time.monotonic() + self.program.grace_s
        while self.exit_code is None and time.monotonic() < deadline and not (hurry and hurry.is_set()):
            time.sleep(0.02)
        return self.kill()

    def kill(self) -> int:
        """End every process of its group; returns the program's exit code."""
        reaper.send(self.pid, signal.SIGKILL)
        self.watch.remove(self.pid)
        return self.process.wait()

    def _pump(self, log: Log) -> None:
        assert self.process.stdout  # noqa: S101 - for the type checker
        with self.process.stdout as lines:
            for line in lines:
                log(self.program.name, line.rstrip("\n"))


class Supervised:
    """A program that is to run: its child, and when it may start again."""

    def __init__(self, program: Program, log: Log, watch: Guard) -> None:
        self.program, self.log, self.watch = program, log, watch
        self.delay_s = FIRST_DELAY_S
        self.restart_at_s: float | None = None
        self.child = self._start()

    def check(self, now_s: float) -> None:
        """Start the program again when it has ended, later each time."""
        if self.restart_at_s is not None:
            if now_s >= self.restart_at_s:
                self.restart_at_s = None
                self.child = self._start()
        elif self.child.exit_code is not None:
            self._plan_restart(now_s, self.child.exit_code)

    def _start(self) -> Child:
        return Child(self.program, self.log, self.watch)

    def _plan_restart(self, now_s: float, code: int) -> None:
        self.child.kill()
        if now_s - self.child.started_s >= STABLE_S:
            self.delay_s = FIRST_DELAY_S
        self.log("up", f"{self.program.name} {describe_exit(code)}; it starts again in {self.delay_s:.0f} s")
        self.restart_at_s = now_s + self.delay_s
        self.delay_s = min(self.delay_s * 2, LONGEST_DELAY_S)


class Supervisor:
    """Runs programs until `stop` is called, then stops them in reverse order."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.stopping = threading.Event()
        self.hurry = threading.Event()
        self.watch = Guard()
        self.supervised: list[Supervised] = []

    def start(self, programs: Iterable[Program]) -> None:
        self.supervised += [Supervised(program, self.log, self.watch) for program in programs]

    def stop(self) -> None:
        """Called again, it does not wait for anybody. Not from a signal handler: it waits for a lock."""
        if self.stopping.is_set():
            self.hurry.set()
        self.stopping.set()

    def run(self) -> None:
        """Keep the programs running until `stop`; all have ended when this returns."""
        while not self.stopping.wait(0.1):
            for supervised in self.supervised:
                supervised.check(time.monotonic())
        self.close()

    def close(self) -> None:
        for supervised in reversed(self.supervised):
            if supervised.child.exit_code is None:
                self.log("up", f"stopping {supervised.program.name}")
            supervised.child.stop(self.hurry)
        self.watch.close()
