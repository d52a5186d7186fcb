"""Rows 5 to 8: one bad input in a batch. Only it fails, with its own code; its neighbours succeed."""

from __future__ import annotations

import resource
from itertools import pairwise
from typing import Any
from uuid import UUID

from tests.echo import Fail
from tests.faults.fault import Fault
from tests.faults.trial import Trial

CALLS_BEYOND_THE_FIRST = 8  # to find one culprit of 32: log2(32) halvings, it alone, twice, and those set aside
HANGS = (Fail.HANG_SLEEP, Fail.HANG_BUSY, Fail.HANG_GIL)
ERRORS = {
    Fail.EXCEPTION: "engine_error",
    Fail.NAN: "bad_output",
    Fail.SHORT: "bad_output",
    Fail.OOM: "out_of_memory",
    Fail.INVALID: "invalid_input",
    Fail.DEVICE: "device_failed",
}


class Culprit(Fault):
    """A full batch, in which one input misbehaves."""

    chunk = 5
    batch = {"batched": 8, "hasty": 8, "wide": 32}

    def trial(self, trial: Trial) -> None:
        trial.service.whole_again()
        self.prepare(trial)
        trial.broken()
        self.culprit = self.submit(trial, *self.choose(trial))

    def prepare(self, trial: Trial) -> None:
        """Before the batch is sent."""

    def choose(self, trial: Trial) -> tuple[str, Fail, str]:
        """The model, what its culprit does, and the code it fails with."""
        raise NotImplementedError

    def more(self) -> dict[str, Any]:
        """What else the culprit's input says."""
        return {}

    def submit(self, trial: Trial, model: str, fail: Fail, code: str) -> UUID:
        size = self.batch[model]
        inputs = [{"text": f"{trial.name} item {number:02}", "none": fail, **self.more()} for number in range(size)]
        place = trial.random.randrange(size)
        inputs[place] = {"text": f"{trial.name} item {place:02}", "fail": fail, **self.more()}
        culprit = trial.submit_together(inputs, model=model)[place]
        trial.outcomes[culprit] = frozenset({code})
        return culprit

    def after(self, trial: Trial) -> None:
        (_, first), *others = trial.engine_calls()
        trial.expect(first in self.batch.values(), f"the first call had {first} items, not the whole batch")
        trial.expect(len(others) <= CALLS_BEYOND_THE_FIRST, f"one culprit of {first} cost {len(others)} more calls")
        trial.measured[f"engine calls beyond the first of {first}"] = len(others)


class Hang(Culprit):
    row, title, ci, full = "5", "hang: sleep, busy loop, C call that holds the GIL", 3, 10
    takes_s, shares = 13.0, True
    recovery_limit_s = 60.0  # every halving costs a time limit and a new process

    LIMIT_S = 2.0  # of the model "hasty"
    KILLED_WITHIN_S = 10.0  # past the limit

    def choose(self, trial: Trial) -> tuple[str, Fail, str]:
        return "hasty", HANGS[trial.number % len(HANGS)], "timed_out"

    def after(self, trial: Trial) -> None:
        super().after(trial)
        moments = [at for job_id, _, at in trial.oracle.events() if job_id == self.culprit]
        longest = max(later - earlier for earlier, later in pairwise(moments))
        trial.in_time(longest, self.LIMIT_S + self.KILLED_WITHIN_S, "the life of a stuck child")
        trial.expect(trial.logged("most recent call first"), "the log has no stack of the stuck child")


class Memory(Culprit):
    row, title, ci, full = "6", "an item that exhausts the memory, under prlimit --as", 1, 20
    takes_s = 2.0

    ROOM_MB = 120
    TAKEN_MB = 600

    def prepare(self, trial: Trial) -> None:
        self.pids = trial.service.replica_pids()
        for pid in self.pids:
            limit = _address_space(pid) + (self.ROOM_MB << 20)
            resource.prlimit(pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))

    def more(self) -> dict[str, Any]:
        return {"megabytes": self.TAKEN_MB}

    def choose(self, trial: Trial) -> tuple[str, Fail, str]:
        return "batched", Fail.EXHAUST, "out_of_memory"

    def after(self, trial: Trial) -> None:
        super().after(trial)
        trial.expect(trial.service.replica_pids() == self.pids, "a child has died of it")


class Poison(Culprit):
    row, title, ci, full = "7", "poison: an input that crashes the process", 1, 20
    takes_s, shares = 10.0, True
    recovery_limit_s = 60.0

    def choose(self, trial: Trial) -> tuple[str, Fail, str]:
        return "wide" if trial.number % 3 == 0 else "batched", Fail.CRASH, "crashed"


class Errors(Culprit):
    row, title, ci, full = "8", "exception, NaN, wrong number of outputs, out of memory, device error", 6, 24
    takes_s, shares = 2.0, True
    chunk = 6
    recovery_limit_s = 60.0

    def choose(self, trial: Trial) -> tuple[str, Fail, str]:
        fail = list(ERRORS)[trial.number % len(ERRORS)]
        return "wide" if fail == Fail.EXCEPTION else "batched", fail, ERRORS[fail]


class Unstorable(Culprit):
    row, title, ci, full = "30", "an output with NUL, or with half a character", 2, 20
    takes_s, shares = 1.0, True
    FAILS = (Fail.NUL, Fail.SURROGATE)

    def choose(self, trial: Trial) -> tuple[str, Fail, str]:
        return "batched", self.FAILS[trial.number % 2], "bad_output"


class PoisonousForDevices(Fault):
    """As many device errors as would condemn a device, if jobs could."""

    row, title, ci, full = "34", "8 inputs that put the device into an error state, two workers", 1, 5
    takes_s, shares = 47.0, True
    options = {"workers": 2}
    chunk = 5
    settle_limit_s = 240.0
    recovery_limit_s = 180.0  # two processes a culprit, at least, and each of them starts anew
    CULPRITS, GOOD = 8, 40

    def trial(self, trial: Trial) -> None:
        names = [trial.text() for _ in range(self.CULPRITS + self.GOOD)]
        culprits = set(trial.random.sample(range(len(names)), self.CULPRITS))
        inputs = [{"text": text, "fail": Fail.DEVICE} if at in culprits else text for at, text in enumerate(names)]
        ids = trial.submit_together(inputs, model="echo")
        trial.outcomes |= {ids[number]: frozenset({"device_failed"}) for number in culprits}
        trial.broken()

    def after(self, trial: Trial) -> None:
        trial.service.whole_again()
        readiness = trial.service.get("/readyz")
        trial.expect(readiness.status == 200, f"/readyz says {readiness.body!r:.300}")
        before = len(trial.service.engine_calls())
        trial.submit_some(4 * self.GOOD)
        trial.until(lambda: not trial.service.unfinished(trial.accepted), "what comes next runs", 60)
        replicas = {pid for pid, _ in trial.service.engine_calls()[before:]}
        for name in trial.service.worker_names:
            trial.expect(replicas & set(trial.service.replica_pids(name)), f"{name} takes no jobs any more")


def _address_space(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
