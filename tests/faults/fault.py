"""A row of the matrix: how its service is set up, what a trial does, and what must hold after it."""

from __future__ import annotations

import contextlib
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from tests.conditions import PATIENCE_S
from tests.faults import holdings
from tests.faults.backends import BROKERS, DATABASES, POSTGRES, Backends
from tests.faults.oracle import Oracle, Verdict
from tests.faults.service import Service
from tests.faults.table import Tally, say
from tests.faults.trial import Trial

WARM_UP = 3  # trials: the first ones open what is kept open


class Fault(ABC):
    """Trials run one after the other on one service; after a trial that failed, on a new one."""

    row: ClassVar[str]
    title: ClassVar[str]
    ci: ClassVar[int]  # trials
    full: ClassVar[int]
    units: ClassVar[int] = 1  # clients or jobs of one trial that the matrix counts as trials
    takes_s: ClassVar[float] = 5.0  # about, a trial of a quick run: what takes long is begun first
    chunk: ClassVar[int] = 10  # trials that share a service; chunks run side by side
    shares: ClassVar[bool] = False  # its service with other faults, which leave it as it was
    alone: ClassVar[bool] = False  # measures answering times: in a full run nothing else runs beside it
    settle_limit_s: ClassVar[float] = PATIENCE_S  # then what is not finished is lost
    recovery_limit_s: ClassVar[float] = 30.0
    may_repeat: ClassVar[bool] = True  # a job may be executed more than once

    options: ClassVar[Mapping[str, Any]] = {}  # of the service
    model: ClassVar[str] = "echo"  # that is asked whether the service serves again
    databases: ClassVar[Sequence[str]] = DATABASES  # that it is played on; POSTGRES alone: on that whatever is chosen
    brokers: ClassVar[Sequence[str]] = BROKERS

    def __init__(self, *, quick: bool, backends: Backends | None = None) -> None:
        self.quick = quick
        self.backends = backends or Backends()
        if self.databases == (POSTGRES,):
            self.backends = replace(self.backends, database=POSTGRES)

    def unavailable(self) -> str:
        """Why the fault cannot be played here, or nothing."""
        for chosen, known in ((self.backends.database, self.databases), (self.backends.broker, self.brokers)):
            if chosen not in known:
                return f"on {' and '.join(known)} only"
        return self.backends.missing()

    def make(self, **options: Any) -> Service:
        """A service of the kind that this run is about."""
        return Service(quick=self.quick, backends=self.backends, **{**self.options, **options})

    @contextlib.contextmanager
    def service(self) -> Iterator[Service]:
        with self.make() as service:
            yield service

    @abstractmethod
    def trial(self, trial: Trial) -> None:
        """Submit, break, heal. What is down is up again when this returns."""

    def after(self, trial: Trial) -> None:  # noqa: B027 - optional by design
        """Look closer, once all jobs are finished."""


@dataclass(slots=True, kw_only=True)
class Run:
    """Trials of faults that share a service; can be sent to another process."""

    trials: list[tuple[type[Fault], Sequence[int]]]  # a fault, and the numbers of its trials
    seed: int
    quick: bool
    backends: Backends
    logs: Path

    @property
    def takes_s(self) -> float:
        return sum(fault.takes_s * len(numbers) for fault, numbers in self.trials)

    def __call__(self) -> list[Tally]:
        parts = [Part(kind(quick=self.quick, backends=self.backends), list(numbers)) for kind, numbers in self.trials]
        for part in parts:
            part.tally.stack = str(self.backends)
            if reason := part.fault.unavailable():
                part.tally.note, part.left = f"not run: {reason}", []
        while left := [part for part in parts if part.left]:
            try:
                with left[0].fault.service() as service:
                    self._on(service, left)
            except Exception as error:
                left[0].tally.problems.append(f"row {left[0].fault.row}: {error!r}")
                left[0].left = left[0].left[1:]
        return [part.tally for part in parts]

    def _on(self, service: Service, parts: Sequence[Part]) -> None:
        """Run what is left until a trial fails, which leaves the service in doubt."""
        oracle = Oracle(service)
        for part in parts:
            before: Mapping[tuple[str, int], holdings.Holdings] = {}
            for done in range(len(part.left)):
                if self._one(service, oracle, part, part.left.pop(0)):
                    return
                if done == WARM_UP:
                    before = holdings.of_service(service)
            part.tally.problems += holdings.grown(before, holdings.of_service(service))

    def _one(self, service: Service, oracle: Oracle, part: Part, number: int) -> list[str]:
        fault, tally = part.fault, part.tally
        trial = Trial(service, oracle, row=fault.row, number=number, seed=self.seed, quick=self.quick)
        started = time.monotonic()
        oracle.forget()
        problems = play(fault, trial, tally)
        word = "FAILED" if problems else "ok"
        say(f"{tally.stack}: {trial.name}: {word}, {len(trial.accepted)} jobs, {time.monotonic() - started:.1f} s")
        if problems:
            tally.problems += [f"{trial.name}: {problem}" for problem in problems]
            self._keep_log(fault, trial, problems)
        return problems

    def _keep_log(self, fault: Fault, trial: Trial, problems: list[str]) -> None:
        self.logs.mkdir(parents=True, exist_ok=True)
        name = f"{trial.name} {type(fault).__name__} {self.backends}".replace(" ", "-")
        file = self.logs / f"{name}.log"
        file.write_text("\n".join([*problems, "", *trial.service.log[trial.log_start :], ""]))
        say(*(f"    {line}" for line in (*problems[:8], f"the log is in {file}")))


class Part:
    """What a run has to do of one fault, and what that came to."""

    def __init__(self, fault: Fault, left: list[int]) -> None:
        self.fault, self.left = fault, left
        self.tally = Tally(row=fault.row, fault=fault.title)


def play(fault: Fault, trial: Trial, tally: Tally) -> list[str]:
    """One trial and its judgement, which goes into the tally. Returns what did not hold."""
    verdict = Verdict()
    try:
        with contextlib.nullcontext() if trial.quick else trial.yardstick:
            fault.trial(trial)
            verdict = trial.oracle.judge(
                trial.accepted, trial.stored(), outcomes=trial.outcomes, right=trial.right, limit_s=fault.settle_limit_s
            )
            if not verdict.lost:
                fault.after(trial)
                serves_again(fault, trial)
        recovery_s = _recovery_s(trial, verdict)
    except Exception:
        trial.problems.append(f"the trial itself failed: {traceback.format_exc()}")
        recovery_s = None
    if recovery_s is not None:
        tally.recoveries_s.append(recovery_s)
        trial.in_time(recovery_s, fault.recovery_limit_s, "to recover")
    problems = trial.problems + verdict.problems
    if verdict.executed_twice and not fault.may_repeat:
        problems.append(f"{verdict.executed_twice} jobs were executed twice")
    _count(tally, trial, verdict, fault.units)
    return problems


def serves_again(fault: Fault, trial: Trial) -> None:
    """A client with a key is answered, whatever was done to the service."""
    trial.until(lambda: trial.service.serves(fault.model), "a POST with a key is answered", fault.recovery_limit_s)


def _recovery_s(trial: Trial, verdict: Verdict) -> float | None:
    """From the fault, or its end, to the last finished job; None when nothing was left to do."""
    since = trial.healed_at or trial.broken_at
    if since is None or verdict.lost or verdict.finished_at <= since:
        return None
    return verdict.finished_at - since


def _count(tally: Tally, trial: Trial, verdict: Verdict, units: int) -> None:
    tally.trials += units
    tally.attempted += trial.statuses.total()
    tally.accepted += len(trial.accepted)
    tally.succeeded += verdict.succeeded
    tally.failed += verdict.failed
    tally.lost += verdict.lost
    tally.executed_twice += verdict.executed_twice
    tally.recorded_twice += verdict.recorded_twice
    tally.measure(trial.measured)
