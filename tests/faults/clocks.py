"""Rows 52 and 53: clocks of the day that are set while jobs run, and a service that sleeps as a whole."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from inference.store.transitions import LEASE_MARGIN_S
from tests.echo import Fail
from tests.faults.backends import POSTGRES, SQLITE
from tests.faults.drill import STATUS
from tests.faults.fault import Fault
from tests.faults.service import Service
from tests.faults.trial import Trial
from tools.launcher.supervisor import Child, Program

SOURCE = Path(__file__).with_name("clock.c")
MINUTES_S, HOURS_S, DAYS_S = 600, 7200, 259_200
LIMIT_S = 2.0  # of the model "brief"


class Clocked(Service):
    """A service in which each worker has a host of its own, and all else another. PostgreSQL is on neither."""

    def start(self, program: Program) -> Child:
        clock = {"LD_PRELOAD": str(self._library()), "CLOCK_FILE": str(self._file(program.name))}
        return super().start(replace(program, environment={**program.environment, **clock}))

    def set_clock(self, seconds: int, *names: str) -> None:
        for name in names:
            with open(self._file(name), "r+b") as file:
                file.write(_long(seconds))

    def _library(self) -> Path:
        library = self.folder / "clock.so"
        if not library.exists():
            subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
        return library

    def _file(self, name: str) -> Path:
        file = self.folder / f"clock-{name if name in self.worker_names else 'others'}"
        if not file.exists():
            file.write_bytes(_long(0))
        return file


def _long(seconds: int) -> bytes:
    return seconds.to_bytes(8, "little", signed=True)


class Clocks(Fault):
    may_repeat = False
    expires_in = HOURS_S // 2

    def unavailable(self) -> str:
        can_compile = shutil.which("cc") or os.environ.get("CI")
        return super().unavailable() or ("" if can_compile else "cc is not installed: Debian's packages gcc, libc6-dev")

    def make(self, **options: Any) -> Service:
        environment = {"API_KEY_RATE": "600"}
        return Clocked(quick=self.quick, backends=self.backends, environment=environment, **self.options, **options)

    def begin(self, trial: Trial) -> None:
        """Submit more than is begun at once, and some with a deadline."""
        trial.submit_together([trial.text() for _ in range(20)], model="slow")
        trial.submit(trial.text(), model="slow", expires_in=self.expires_in)
        trial.until_running("slow")

    def all_end(self, trial: Trial) -> None:
        trial.until(lambda: not trial.service.unfinished(trial.accepted), "all jobs end")

    @contextlib.contextmanager
    def waiting(self, trial: Trial) -> Iterator[None]:
        """Let a client wait meanwhile, and another send the same before and after."""
        job = trial.submit(trial.text(), model="slow")
        once = [self.send_once(trial)]
        with ThreadPoolExecutor(1) as pool:
            polled = pool.submit(trial.service.get, f"/v1/jobs/{job}?wait=30")
            yield
            once.append(self.send_once(trial))
            trial.expect(polled.result().status == 200, f"who waited for a job was told {polled.result()}")
        trial.expect(once[0] == once[1], f"what was sent twice was answered with {once}")
        self.all_end(trial)

    def send_once(self, trial: Trial) -> tuple[int, str]:
        headers = {**trial.service.key("once"), "Idempotency-Key": f"{trial.name} {len(trial.accepted)}"}
        answer = trial.service.post("/v1/jobs", {"model": "echo", "inputs": trial.name}, headers=headers)
        return answer.status, answer.json.get("id", "")

    def after(self, trial: Trial) -> None:
        """Expect that nothing is said of it, and that nobody was taken for gone."""
        kept = [line for line in trial.service.log if "cannot be preloaded" in line]  # as from a path with a space
        trial.expect(not kept, f"clocks were not set: {kept}")
        trial.until(lambda: trial.service.get("/readyz").status == 200, "it is ready")
        attention: list[list[Any]] = [["not looked yet"]]

        def take(name: str, line: str) -> None:
            attention.append(json.loads(line)["attention"] if line.startswith("{") else [line])

        environment = trial.service.children["web"].program.environment
        status = Child(replace(STATUS, environment=environment), take, trial.service.reaper)
        trial.until(lambda: not attention[-1], "nothing needs attention")
        trial.expect(not attention[-1], f"said is {attention[-1]}")
        status.stop()
        for text in ("silent for", "given back"):
            trial.expect(not trial.logged(text), f"logged: {trial.logged(text)}")
        again = trial.service.jobs.filter(pk__in=list(trial.accepted), recoveries__gt=0).count()
        trial.expect(not again, f"{again} jobs were taken for lost")


class HostsClockSet(Clocks):
    """Sets a clock by more than any trial takes."""

    row, title, ci, full = "52", "the clock of the web server's host, or of a worker's, is set while jobs run", 2, 20
    takes_s = 8.0
    databases = (POSTGRES,)  # a file has the clock of its host
    SET_S: ClassVar[Sequence[int]] = (HOURS_S, -HOURS_S, MINUTES_S, -MINUTES_S, DAYS_S, -DAYS_S)

    def trial(self, trial: Trial) -> None:
        service, name = trial.service, ("web", "worker1")[trial.number % 2]
        assert isinstance(service, Clocked)
        for set_s in (trial.random.choice(self.SET_S), 0):
            self.begin(trial)
            with self.waiting(trial):
                service.set_clock(set_s, name)
                self.begin(trial)

    def after(self, trial: Trial) -> None:
        super().after(trial)
        for since, until in (("created_at", "started_at"), ("started_at", "finished_at")):
            odd = [took_s for took_s in trial.took_s(trial.accepted, since, until) if not -1 < took_s < MINUTES_S / 2]
            trial.expect(not odd, f"from {since} to {until} it took {odd} s")


class Laptop(Clocks):
    row, title, ci, full = "53", "all processes sleep for longer than leases; their one clock is set", 1, 5
    takes_s = 60.0
    chunk = 1  # later trials would find its jobs in the future
    databases = (SQLITE,)
    may_repeat = True
    expires_in = 2 * DAYS_S  # deadlines pass by that clock

    def trial(self, trial: Trial) -> None:
        trial.service.whole_again()
        for ahead_s in (0, HOURS_S):
            self.begin(trial)
            with self.waiting(trial):
                self.sleep(trial, ahead_s)
        for set_s in (HOURS_S + MINUTES_S, -DAYS_S):
            self.begin(trial)
            with self.waiting(trial):
                self.set_clock(trial, set_s)
                self.begin(trial)

    def set_clock(self, trial: Trial, seconds: int) -> None:
        assert isinstance(trial.service, Clocked)
        trial.service.set_clock(seconds, "worker1", "web")

    def sleep(self, trial: Trial, ahead_s: int) -> None:
        """Stop all processes, and let them go on in any order, at another time of the day."""
        trial.service.hold()
        inputs = [{"text": trial.text(), "fail": Fail.HELD} for _ in range(8)]
        trial.submit_together(inputs, model="brief")
        trial.until_running("brief")
        pids = [child.pid for child in trial.service.children.values()]
        for pid in pids:
            os.killpg(pid, signal.SIGSTOP)
        try:
            trial.pause(LIMIT_S + LEASE_MARGIN_S, LIMIT_S + LEASE_MARGIN_S + 3.0)
            self.set_clock(trial, ahead_s)
            trial.service.release()
        finally:
            for pid in trial.random.sample(pids, len(pids)):
                os.killpg(pid, signal.SIGCONT)
