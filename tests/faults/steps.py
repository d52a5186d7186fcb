"""Row 16: the process that comes by a named step ends there, as if killed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.faults.fault import Fault
from tests.faults.service import Service
from tests.faults.trial import Trial

_REACHED = ("insert", "publish", "claim", "run", "record", "notify", "ack")
STEPS = tuple(f"{when}_{step}" for step in _REACHED for when in ("before", "after"))
NOBODY = 0  # the status of a request that was not answered: its process is gone


class Step(Fault):
    row, title, ci, full = "16", "exit at each named step", len(STEPS), 14 * len(STEPS)
    takes_s = 4.0
    chunk = len(STEPS)

    @contextlib.contextmanager
    def service(self) -> Iterator[Service]:
        service = self.make()
        self.folder = service.folder / "failpoints"
        self.folder.mkdir()
        service.environment["FAILPOINTS"] = str(self.folder)
        with service:
            yield service

    def trial(self, trial: Trial) -> None:
        step = STEPS[trial.number % len(STEPS)]
        with trial.load(per_s=60, count=120) as load:
            trial.pause(0.05, 0.5)
            armed = self.folder / step
            armed.touch()
            self.until_taken(trial, armed)
            trial.broken()
            load.finish()
        trial.add(load, refusals=[NOBODY])
        trial.until(lambda: self.is_whole(trial), "all processes are back")

    def until_taken(self, trial: Trial, armed: Path) -> None:
        trial.until(lambda: not armed.exists(), f"a process comes by {armed.name}")
        trial.until(lambda: self.is_whole(trial), "all processes are back")

    def is_whole(self, trial: Trial) -> bool:
        """Return whether all processes live, after a restart of what has ended, as by a supervisor.

        The main process of a web server ends after the one that came by the step.
        """
        service = trial.service
        service.restart_ended()
        try:
            return service.answers() and service.workers_are_ready() and service.replicas_alive()
        except AssertionError:  # something has ended since
            return False
