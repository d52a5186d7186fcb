"""Row 28: half an hour of small disasters, after which nothing has grown."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import time
from dataclasses import dataclass, field

from tests.faults import holdings
from tests.faults.backends import REDIS
from tests.faults.fault import Fault
from tests.faults.trial import Trial

SOAK_S = 1800.0
QUICK_S = 60.0  # when it is asked for by name in a quick run
EVERY_S = 5.0


@dataclass(slots=True)
class Samples:
    """By what was measured: its values in the course of time."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def take(self, trial: Trial) -> None:
        for (name, _), held in holdings.of_service(trial.service).items():
            if not name.startswith("worker"):  # those are killed and begin anew
                for what in ("memory_mb", "files", "threads"):
                    self._add(f"{what} of {name}", getattr(held, what))
        with contextlib.closing(trial.service.redis()) as client:
            self._add("keys of the broker", client.dbsize())
            self._add("connections of the broker", client.info("clients")["connected_clients"])

    def _add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    def grown(self) -> list[str]:
        """What is larger in the last third than in the second by more than a fifth; the first third warms up."""
        found = []
        for name, values in self.values.items():
            third = len(values) // 3
            before, after = statistics.median(values[third : 2 * third]), statistics.median(values[-third:])
            if after > 1.2 * before + 8:
                found.append(f"{name} grew from {before:.0f} to {after:.0f}")
        return found


class Soak(Fault):
    row, title, ci, full = "28", "soak: kills of workers and children, cut connections, 30 min", 0, 1
    options = {"workers": 2}
    brokers = (REDIS,)

    def trial(self, trial: Trial) -> None:
        samples = Samples()
        until = time.monotonic() + (QUICK_S if trial.quick else SOAK_S)
        with trial.load(per_s=20) as load:
            while time.monotonic() < until:
                trial.random.choice((self.kill_worker, self.kill_child, self.cut))(trial)
                time.sleep(EVERY_S)
                trial.service.restart_ended()
                samples.take(trial)
            trial.broken()
        trial.add(load)
        trial.service.whole_again()
        trial.problems += samples.grown()

    def kill_worker(self, trial: Trial) -> None:
        trial.service.children[trial.random.choice(trial.service.worker_names)].kill()

    def kill_child(self, trial: Trial) -> None:
        if calls := trial.service.engine_calls()[-1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(calls[0][0], signal.SIGKILL)

    def cut(self, trial: Trial) -> None:
        with contextlib.closing(trial.service.redis()) as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
