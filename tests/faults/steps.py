"""Row 16: the process that comes by a named step ends there, as if killed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from tests.faults.fault import Fault
from tests.faults.service import Service
from tests.faults.trial import Trial

_REACHED = ("insert", "publish", "claim", "run", "record", "notify", "ack")
STEPS = tuple(f"{when}_{step}" for step in _REACHED for when in ("before", "after"))
NOBODY = 0  # the status of a request that was not answered: its process is gone


class Step(Fault):
    row, title, ci, full = "16", "exit at each named step", 3 * len(STEPS), 14 * len(STEPS)
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
        trial.service.restart_ended()
        trial.service.whole_again()

    def until_taken(self, trial: Trial, armed: Path) -> None:
        """The supervisor's part: what has ended starts again. A few more jobs pass the step when the load is over."""
        deadline = time.monotonic() + 30.0
        while armed.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        trial.expect(not armed.exists(), f"nobody came by {armed.name}")
        time.sleep(0.2)  # a web server's main process follows the one that ended
        trial.service.restart_ended()
