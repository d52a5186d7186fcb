"""The supervisor, which keeps programs running.

Each program has a process group of its own, and is restarted with back-off. At the end the programs are stopped in
reverse order. No process outlives the supervisor: when it ends, also by SIGKILL, the reaper ends what is left.
"""

import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tools.launcher.reaper import Reaper, kill_group

OPEN_FILES = 8192  # many waiting connections, and three files a thread for SQLite
FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 30.0
STABLE_S = 60.0  # a program that ran for this long starts again after the first delay

Log = Callable[[str, str], None]  # program's name, line


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program to run. `command` starts with the executable's path."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)  # added to the environment of this process
    grace_s: float = 15.0  # from SIGTERM to SIGKILL
    hears_hangup: bool = False  # True if SIGHUP is passed on to the program


def raise_open_files_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def describe_exit(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class Child:
    """One running program, whose output goes to `log` line by line."""

    def __init__(self, program: Program, log: Log, reaper: Reaper) -> None:
        self.program = program
        self.reaper = reaper
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
        reaper.add(self.pid, program.grace_s)
        self.pump = threading.Thread(target=self._pump, args=(log,), name=f"log-{program.name}", daemon=True)
        self.pump.start()

    @property
    def pid(self) -> int:
        """The id of the process, which is also the id of its process group."""
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def terminate(self) -> None:
        if self.exit_code is None:
            self.process.terminate()

    def stop(self, hurry: threading.Event | None = None) -> int:
        """Stop the program and return its exit code.

        Processes that still run after the grace time, or once `hurry` is set, are killed.
        """
        self.terminate()
        deadline = time.monotonic() + self.program.grace_s
        while self.exit_code is None and time.monotonic() < deadline and not (hurry and hurry.is_set()):
            time.sleep(0.02)
        return self.kill()

    def kill(self) -> int:
        """End every process of the program's group, and return the program's exit code."""
        kill_group(self.pid)
        self.reaper.remove(self.pid)
        return self.process.wait()

    def _pump(self, log: Log) -> None:
        assert self.process.stdout  # noqa: S101 - for the type checker
        with self.process.stdout as lines:
            for line in lines:
                log(self.program.name, line.rstrip("\n"))


class Supervised:
    """A program that is to run, with its child process and the time at which it may start again."""

    def __init__(self, program: Program, log: Log, reaper: Reaper) -> None:
        self.program, self.log, self.reaper = program, log, reaper
        self.delay_s = FIRST_DELAY_S
        self.restart_at_s: float | None = None
        self.child = self._start()

    def restart_if_ended(self, now_s: float) -> None:
        """Start the program again if it has ended, after a longer delay each time."""
        if self.restart_at_s is not None:
            if now_s >= self.restart_at_s:
                self._restart(now_s)
        elif self.child.exit_code is not None:
            self._plan_restart(now_s, self.child.exit_code)

    def _start(self) -> Child:
        return Child(self.program, self.log, self.reaper)

    def _restart(self, now_s: float) -> None:
        try:
            self.child, self.restart_at_s = self._start(), None
        except OSError as error:  # memory, processes or files are used up: the other programs go on
            self.log("up", f"{self.program.name} cannot be started: {error}; tried again in {self.delay_s:.0f} s")
            self._delay(now_s)

    def _delay(self, now_s: float) -> None:
        self.restart_at_s = now_s + self.delay_s
        self.delay_s = min(self.delay_s * 2, LONGEST_DELAY_S)

    def _plan_restart(self, now_s: float, code: int) -> None:
        self.child.kill()
        if now_s - self.child.started_s >= STABLE_S:
            self.delay_s = FIRST_DELAY_S
        self.log("up", f"{self.program.name} {describe_exit(code)}; it starts again in {self.delay_s:.0f} s")
        self._delay(now_s)


class Supervisor:
    """The supervisor runs programs until `stop` is called, and then stops them in reverse order."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.stopping = threading.Event()
        self.hurry = threading.Event()
        self.reaper = Reaper()
        self.supervised: list[Supervised] = []

    def start(self, programs: Iterable[Program]) -> None:
        self.supervised += [Supervised(program, self.log, self.reaper) for program in programs]

    def stop(self) -> None:
        """Stop all programs. A second call makes it kill them at once.

        A signal handler must not call it, as it waits for a lock.
        """
        if self.stopping.is_set():
            self.hurry.set()
        self.stopping.set()

    def pass_on_hangup(self) -> None:
        """Pass SIGHUP on to the programs that take it.

        A program that started less than `STABLE_S` ago gets none, as it may not handle the signal yet and would end.
        """
        for supervised in self.supervised:
            child = supervised.child
            is_old = time.monotonic() - child.started_s >= STABLE_S
            if supervised.program.hears_hangup and is_old and child.exit_code is None:
                child.process.send_signal(signal.SIGHUP)

    def run(self) -> None:
        """Keep the programs running until `stop` is called. All have ended when this returns."""
        while not self.stopping.wait(0.1):
            for supervised in self.supervised:
                supervised.restart_if_ended(time.monotonic())
        self.close()

    def close(self) -> None:
        for supervised in reversed(self.supervised):
            if supervised.child.exit_code is None:
                self.log("up", f"stopping {supervised.program.name}")
            supervised.child.stop(self.hurry)
        self.reaper.close()
