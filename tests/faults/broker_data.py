"""Rows 33 and 39: the broker's data is gone while much waits, or was written by another version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from inference.values.priority import Priority
from tests.faults.backends import REDIS
from tests.faults.fault import Fault
from tests.faults.trial import Trial


class LostUnderLowQueue(Fault):
    """What is sent again must not go before what matters more."""

    row, title, ci, full = "33", "broker loses its data under a long low queue, high jobs arrive", 1, 10
    takes_s, shares = 25.0, True
    chunk = 5
    settle_limit_s = 240.0
    recovery_limit_s = 180.0  # what the low queue takes
    LOW, QUICK_LOW = 1500, 500
    HIGH, HIGH_LIMIT_S = 6, 8.0
    AHEAD = 4 * 8  # low jobs that may begin before a high one: two batches of each replica

    def trial(self, trial: Trial) -> None:
        texts = [trial.text() for _ in range(self.QUICK_LOW if trial.quick else self.LOW)]
        trial.submit_together(texts, model="slow", priority="low")
        trial.until_running("slow")
        if trial.service.rabbit:
            trial.service.broker.forget("inference.slow")
        else:
            trial.service.flush()
        trial.broken()
        self.high = [self.submit_high(trial) for _ in range(self.HIGH)]

    def submit_high(self, trial: Trial) -> UUID:
        job_id = trial.submit(trial.text(), model="slow", priority="high")
        trial.pause(0.5, 1.5)
        return job_id

    def after(self, trial: Trial) -> None:
        longest = max(trial.took_s(self.high, "created_at", "finished_at"))
        trial.measured["s for a high job"] = longest
        trial.in_time(longest, self.HIGH_LIMIT_S, "a high job")
        most = self.AHEAD * trial.yardstick.slowness  # while the worker is slow to hear that its queue is another one
        for job in trial.service.jobs.filter(pk__in=self.high):
            during = trial.service.jobs.filter(
                started_at__range=(job.created_at, job.started_at), priority=Priority.LOW
            )
            trial.expect(during.count() <= most, f"{during.count()} low jobs began while a high one waited")


def _newer_snapshot(data: Path) -> None:
    """As of a server of the future."""
    folder = data / "appendonlydir"
    for file in folder.glob("*.rdb"):
        file.write_bytes(b"REDIS9999" + file.read_bytes()[9:])


def _garbage_manifest(data: Path) -> None:
    for file in (data / "appendonlydir").glob("*.manifest"):
        file.write_text("no manifest at all\n")


def _garbage_in_the_log(data: Path) -> None:
    for file in (data / "appendonlydir").glob("*.incr.aof"):
        file.write_bytes(b"*1\r\n$9\r\nno command of this server\r\n" * 8 + file.read_bytes())


class Unreadable(Fault):
    row, title, ci, full = "39", "the broker's data is of another version, or damaged", 3, 15
    shares = True
    brokers = (REDIS,)
    chunk = 5
    KINDS: tuple[Callable[[Path], None], ...] = (_newer_snapshot, _garbage_manifest, _garbage_in_the_log)

    def trial(self, trial: Trial) -> None:
        with trial.load(per_s=60) as load:
            trial.pause(0.3, 1.0)
            trial.service.broker.kill()
            self.KINDS[trial.number % len(self.KINDS)](trial.service.folder / "broker")
            self.start_until_it_answers(trial)
            trial.healed()
            trial.pause(0.2, 0.6)
        trial.add(load)

    def start_until_it_answers(self, trial: Trial) -> None:
        trial.until(lambda: self.starts(trial), "the broker starts with this data")

    def starts(self, trial: Trial) -> bool:
        try:
            trial.service.broker.start()
        except AssertionError:
            return False
        return True
