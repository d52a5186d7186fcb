"""One trial: what it submitted, what it expects, and when the fault began and ended."""

from __future__ import annotations

import datetime
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from django.utils import timezone

from inference.models import Job, Status
from tests.conditions import PATIENCE_S, wait_for
from tests.faults.load import Load, Submissions
from tests.faults.oracle import Oracle, Right, echoed
from tests.faults.service import Service
from tests.faults.yardstick import Yardstick

ANSWER_LIMIT_S = 6.0  # whatever is away, a request is answered within


class Trial:
    def __init__(self, service: Service, oracle: Oracle, *, row: str, number: int, seed: int, quick: bool) -> None:
        self.service, self.oracle = service, oracle
        self.name = f"row {row} trial {number}"
        self.number, self.quick = number, quick
        self.random = random.Random(f"{seed} {self.name}")
        self.started_at = time.time()
        self.log_start = len(service.log)
        self.calls_start = len(service.engine_calls())
        self.accepted: dict[UUID, Any] = {}
        self.outcomes: dict[UUID, frozenset[str]] = {}  # of those that need not succeed
        self.statuses: Counter[int] = Counter()
        self.right: Right = echoed
        self.make: Callable[[], Any] = self.text  # the inputs of a load
        self.yardstick = Yardstick()
        self.problems: list[str] = []
        self.measured: dict[str, float] = {}
        self.broken_at: float | None = None
        self.healed_at: float | None = None
        self._numbers = itertools.count()

    # Jobs

    def text(self) -> str:
        """An input that no other job has, of any length."""
        return f"{self.name} job {next(self._numbers)} " + "x" * self.random.randrange(200)

    def submit(self, inputs: Any, *outcomes: str, model: str = "echo", **fields: Any) -> UUID:
        """One job that must be accepted; it must succeed unless `outcomes` says other."""
        job_id = self.service.submit(inputs, model=model, **fields)
        self.statuses[202] += 1
        self.accepted[job_id] = inputs
        if outcomes:
            self.outcomes[job_id] = frozenset(outcomes)
        return job_id

    def submit_some(self, count: int, *, model: str = "echo") -> list[UUID]:
        return [self.submit(self.text(), model=model) for _ in range(count)]

    def submit_together(self, inputs: list[Any], *, model: str, priority: str = "normal") -> list[UUID]:
        """Jobs that arrive at one moment, in the order of their inputs."""
        answer = self.service.post("/v1/jobs/bulk", {"model": model, "inputs": inputs, "priority": priority})
        if answer.status != 202:
            raise AssertionError(f"not accepted: {answer.status} {answer.body!r:.500}")
        jobs = self.service.jobs.filter(bulk=answer.json["id"]).order_by("bulk_index")
        accepted = {job.id: job.inputs for job in jobs}
        self.statuses[202] += len(inputs)
        self.accepted |= accepted
        return list(accepted)

    def store(self, model: str) -> UUID:
        """A row as that of an accepted job, without a message."""
        job = self.service.jobs.create(model=model, inputs=self.text(), published_at=timezone.now())
        self.accepted[job.id] = job.inputs
        return job.id

    def load(self, *, per_s: float, model: str = "echo", **options: Any) -> Load:
        return Load(self.service.port, self.make, per_s=per_s, model=model, **options)

    def add(self, load: Load, *, refusals: Iterable[int] = (), answer_limit_s: float | None = None) -> Submissions:
        """Take over what a load was told. `refusals` are the statuses that may come besides 202."""
        result = load.result
        self.accepted |= result.accepted
        self.statuses += result.statuses
        for status in result.statuses.keys() - {202, *refusals}:
            self.problems.append(f"{result.statuses[status]} answers of {status}: {result.bodies[status]!r:.300}")
        if answer_limit_s is not None:
            self.in_time(result.slowest_s, answer_limit_s, "the slowest answer")
        return result

    # The fault

    def broken(self) -> None:
        """The fault has just happened; recovery is counted from here, or from `healed`."""
        self.broken_at = time.time()

    def healed(self) -> None:
        """What was away is back; recovery is counted from here."""
        self.healed_at = time.time()

    def expect(self, condition: object, otherwise: str) -> None:
        if not condition:
            self.problems.append(otherwise)

    def until(self, condition: Any, what: str, limit_s: float = 30.0) -> None:
        """Wait until `condition` holds. It is a problem if it never does, and if it does so after `limit_s`."""
        started = time.monotonic()
        if value := wait_for(condition, limit_s=max(limit_s, PATIENCE_S), every_s=0.02):
            self.in_time(time.monotonic() - started, limit_s, what)
        else:
            self.problems.append(f"{what}: it never came; last seen: {value!r}")

    def in_time(self, took_s: float, limit_s: float, what: str) -> None:
        """Expect that something took `limit_s` at most, on the machine that the limit was chosen on.

        A quick run, which decides what lands, knows no seconds: they are those of the machine that runs it.
        """
        if not self.quick:
            allowed_s = limit_s * self.yardstick.slowness
            self.expect(took_s <= allowed_s, f"{what}: {took_s:.1f} s, and {allowed_s:.1f} s are allowed")

    def until_running(self, model: str = "echo") -> Job | None:
        running = self.service.jobs.filter(status=Status.RUNNING, model=model, pk__in=list(self.accepted))
        if not self.accepted:
            running = self.service.jobs.filter(status=Status.RUNNING, model=model)
        self.until(running.exists, "a batch runs")
        return running.first()

    def pause(self, least_s: float, most_s: float) -> float:
        """A random wait, which is what is tried out: the fault may hit any moment."""
        seconds = self.random.uniform(least_s, most_s)
        time.sleep(seconds)
        return seconds

    # What was seen meanwhile

    def took_s(self, ids: Iterable[UUID], since: str, until: str) -> list[float]:
        """For each of the jobs, the seconds between two of its columns, which must be set."""
        times = self.service.jobs.filter(pk__in=ids).values_list(since, until)
        return [(ended - begun).total_seconds() for begun, ended in times]

    def logged(self, text: str) -> list[str]:
        return [line for line in self.service.log[self.log_start :] if text in line]

    def engine_calls(self) -> list[tuple[int, int]]:
        return self.service.engine_calls()[self.calls_start :]

    def stored(self) -> list[UUID]:
        """Jobs that were stored in this trial though their client was not told."""
        jobs = self.service.jobs.filter(created_at__gte=_moment(self.started_at), whole=None)
        ids = jobs.values_list("pk", flat=True)
        return [job_id for job_id in ids if job_id not in self.accepted]


def _moment(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
