"""Compares what was accepted with the rows.

A trigger in the database writes down every claim and every end of a job, and every change after the end, whoever makes
it: "executed twice" and "recorded twice" are counted, not inferred.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db import connections

from inference.models import TERMINAL, Job, Status
from tests import echo
from tests.conditions import PATIENCE_S, wait_for
from tests.faults import holdings
from tests.faults.service import Service
from tests.inference.figures.agreement import of_figures, of_rows

IDLE_LIMIT_S = PATIENCE_S
_ENDED = ", ".join(f"'{status}'" for status in TERMINAL)

_SQLITE = f"""
CREATE TABLE fault_event (number INTEGER PRIMARY KEY, job_id TEXT, kind TEXT,
    at REAL DEFAULT ((julianday('now') - 2440587.5) * 86400));
CREATE TRIGGER fault_claim AFTER UPDATE OF attempts ON inference_job WHEN NEW.attempts > OLD.attempts
    BEGIN INSERT INTO fault_event (job_id, kind) VALUES (NEW.id, 'claim'); END;
CREATE TRIGGER fault_end AFTER UPDATE OF status ON inference_job WHEN NEW.status IN ({_ENDED})
    BEGIN INSERT INTO fault_event (job_id, kind) VALUES (NEW.id, 'end'); END;
CREATE TRIGGER fault_change AFTER UPDATE ON inference_job WHEN OLD.status IN ({_ENDED}) AND (NEW.status <> OLD.status
    OR NEW.output IS NOT OLD.output OR NEW.error_code <> OLD.error_code)
    BEGIN INSERT INTO fault_event (job_id, kind) VALUES (NEW.id, 'change'); END;
"""
_POSTGRESQL = f"""
CREATE TABLE fault_event (number BIGSERIAL PRIMARY KEY, job_id TEXT, kind TEXT,
    at DOUBLE PRECISION DEFAULT EXTRACT(EPOCH FROM clock_timestamp()));
CREATE FUNCTION fault_note() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO fault_event (job_id, kind) VALUES (NEW.id::text, TG_ARGV[0]); RETURN NULL; END $$;
CREATE TRIGGER fault_claim AFTER UPDATE OF attempts ON inference_job FOR EACH ROW
    WHEN (NEW.attempts > OLD.attempts) EXECUTE FUNCTION fault_note('claim');
CREATE TRIGGER fault_end AFTER UPDATE OF status ON inference_job FOR EACH ROW
    WHEN (NEW.status IN ({_ENDED})) EXECUTE FUNCTION fault_note('end');
CREATE TRIGGER fault_change AFTER UPDATE ON inference_job FOR EACH ROW WHEN (OLD.status IN ({_ENDED})
    AND (NEW.status <> OLD.status OR NEW.output IS DISTINCT FROM OLD.output OR NEW.error_code <> OLD.error_code))
    EXECUTE FUNCTION fault_note('change');
"""

Right = Callable[[Any, Any], bool]  # inputs, output


@dataclass(slots=True)
class Verdict:
    """Of one trial."""

    succeeded: int = 0
    failed: int = 0  # with the outcome that was expected of them
    lost: int = 0
    executed_twice: int = 0
    recorded_twice: int = 0
    finished_at: float = 0.0  # the last job, in seconds since the epoch
    problems: list[str] = field(default_factory=list)


def echoed(inputs: Any, output: Any) -> bool:
    return bool(output == echo.expected(inputs))


def echoed_in_order(inputs: Any, output: Any) -> bool:
    """Where lists are among the inputs."""
    return bool(output == list(map(echo.expected, inputs))) if isinstance(inputs, list) else echoed(inputs, output)


class Oracle:
    """Watches the database of one service from before the first job."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.connection = connections[service.alias]
        self.seen = 0  # events of earlier trials
        self._run_script()

    def _run_script(self) -> None:
        with self.connection.cursor() as cursor:
            if self.connection.vendor == "sqlite":
                cursor.executescript(_SQLITE)
            else:
                cursor.execute(_POSTGRESQL)

    def events(self) -> list[tuple[UUID, str, float]]:
        """(job, kind, time) of this trial."""
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT job_id, kind, at FROM fault_event WHERE number > %s ORDER BY number", [self.seen])
            return [(UUID(job_id), kind, at) for job_id, kind, at in cursor.fetchall()]

    def forget(self) -> None:
        """What comes now belongs to the next trial."""
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT COALESCE(MAX(number), 0) FROM fault_event")
            (self.seen,) = cursor.fetchone()

    def judge(
        self,
        accepted: Mapping[UUID, Any],
        others: Iterable[UUID] = (),
        *,
        outcomes: Mapping[UUID, frozenset[str]],
        right: Right = echoed,
        limit_s: float,
    ) -> Verdict:
        """Wait until the jobs are finished, or for `limit_s`, and compare. `others` were stored and not answered."""
        verdict = Verdict()
        ids = [*accepted, *others]
        self._wait(ids, limit_s)
        jobs = {job.id: self._with_inputs(job) for job in self.service.jobs.filter(pk__in=ids)}
        for job_id, inputs in accepted.items():
            _compare(jobs.get(job_id), job_id, inputs, outcomes.get(job_id, _SUCCESS), right, verdict)
        for job_id in others:
            _compare(jobs.get(job_id), job_id, jobs[job_id].inputs, _ANY, right, Verdict(problems=verdict.problems))
        finished = (job.finished_at.timestamp() for job in jobs.values() if job.finished_at)
        verdict.finished_at = max(finished, default=0.0)
        self._count(jobs.values(), verdict)
        self._leftovers(verdict)
        return verdict

    def _wait(self, ids: list[UUID], limit_s: float) -> None:
        wait_for(lambda: not self.service.unfinished(ids), limit_s=limit_s, every_s=0.1)  # the others count as lost

    def _with_inputs(self, job: Job) -> Job:
        if job.parts:
            parts = self.service.jobs.filter(whole=job.pk).order_by("place").values_list("inputs", flat=True)
            job.inputs = [item for part in parts for item in part]
        return job

    def _count(self, jobs: Iterable[Job], verdict: Verdict) -> None:
        by_kind = Counter((job_id, kind) for job_id, kind, _ in self.events())
        for job in jobs:
            verdict.executed_twice += by_kind[job.id, "claim"] > 1
            twice = by_kind[job.id, "end"] > 1 or by_kind[job.id, "change"] > 0
            verdict.recorded_twice += twice
            if job.status in TERMINAL and not by_kind[job.id, "end"]:
                verdict.problems.append(f"{job.id} has ended, and the trigger saw no end")
        if verdict.recorded_twice:
            verdict.problems.append(f"{verdict.recorded_twice} jobs were recorded twice")

    def _leftovers(self, verdict: Verdict) -> None:
        """What must be gone once all jobs have ended."""
        if verdict.lost:
            return  # what is left is theirs
        for what, left in (
            ("claims are left", self._claims), ("workers are not idle", self._busy),
            ("messages wait", self._waiting), ("taken messages belong to unfinished jobs", self._taken),
            ("figures that the rows do not have", self._miscounted),
            ("stray processes", lambda: holdings.strays(self.service)),
        ):  # fmt: skip
            self._await_none(what, left, verdict)

    def _await_none(self, what: str, left: Callable[[], object], verdict: Verdict) -> None:
        if not wait_for(lambda: not left(), limit_s=IDLE_LIMIT_S, every_s=0.1):
            verdict.problems.append(f"{what}: {left()}")

    def _claims(self) -> list[UUID]:
        return list(self.service.jobs.filter(status=Status.RUNNING).values_list("pk", flat=True))

    def _busy(self) -> list[str]:
        return [
            f"{worker.name} holds {worker.held}, {worker.replicas_busy} replicas busy"
            for worker in self.service.living_workers()
            if worker.held or worker.replicas_busy
        ]

    def _miscounted(self) -> dict[tuple[str, str], int]:
        """By model and end: more in the figures than in the rows, or, below zero, fewer."""
        counted = of_figures(self.service.alias)
        counted.subtract(of_rows(self.service.jobs.all()))
        return {end: count for end, count in counted.items() if count}

    def _waiting(self) -> dict[str, int]:
        return {queue: count for queue, count in self.service.broker.messages()[0].items() if count}

    def _taken(self) -> list[UUID]:
        """A message that a dead worker has taken is harmless once its job has ended."""
        taken = self.service.broker.messages()[1]
        return list(self.service.jobs.filter(pk__in=taken).exclude(status__in=TERMINAL).values_list("pk", flat=True))


_SUCCESS = frozenset({str(Status.SUCCEEDED)})
_ANY = frozenset({"any"})


def _compare(
    job: Job | None, job_id: UUID, inputs: Any, wanted: frozenset[str], right: Right, verdict: Verdict
) -> None:
    if job is None or job.status not in TERMINAL:
        verdict.lost += 1
        verdict.problems.append(f"lost: {job_id} {describe(job)}")
        return
    outcome = job.error_code or job.status
    verdict.succeeded += job.status == Status.SUCCEEDED
    verdict.failed += job.status != Status.SUCCEEDED
    if job.inputs != inputs:
        verdict.problems.append(f"{job_id} has the inputs of another")
    if wanted is not _ANY and outcome not in wanted:
        verdict.problems.append(f"{job_id} should be {' or '.join(sorted(wanted))}: {describe(job)}")
    if job.status == Status.SUCCEEDED and not right(job.inputs, job.output):
        verdict.problems.append(f"{job_id} has a wrong output: {json.dumps(job.output)[:200]}")


def describe(job: Job | None) -> str:
    if job is None:
        return "has no row"
    return (
        f"is {job.status} {job.error_code} {job.error_detail[:200]!r} after {job.attempts} claims and"
        f" {job.recoveries} recoveries, worker {job.worker}"
    )
