"""Many clients at once against the real service: rows 18, 26 and 27 of the fault matrix, and blocking in numbers."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

from inference.models import Job, Status
from tests.api.crowd import MODELS, crowd
from tests.e2e.case import StackCase

CANCELS = 200
QUICK = """
[quick]
engine = "tests.echo:EchoEngine"
max_batch_size = 4
options = { fixed_ms = 15 }
"""
ONE_BY_ONE = """
[steady]
engine = "tests.echo:EchoEngine"
max_batch_size = 1
options = { fixed_ms = 30 }
"""
SHARE = 40  # jobs of one owner that may wait


class CrowdTests(StackCase):
    options = {"models": MODELS, "environment": {"MAX_WAITING_REQUESTS": "40"}}

    def test_each_of_many_blocking_clients_gets_an_answer_it_can_go_on_with(self) -> None:
        outcome = crowd(self.stack.port, 150)
        self.assertEqual(outcome.lacking, [])
        self.assertEqual(sum(outcome.answers.values()), 150)
        self.assertGreater(outcome.answers["200"], 0)
        self.assertGreater(outcome.answers["504 not_finished"], 0)


class CancelTests(StackCase):
    options = {"models": QUICK, "replicas": 1}

    def test_what_was_answered_as_cancelled_never_succeeds(self) -> None:
        chance = random.Random(26)
        early = self.stack.submit("text", model="quick")
        self.stack.finished(early)
        self.stack.post("/v1/jobs/bulk", {"model": "quick", "inputs": ["text"] * CANCELS})
        ids = [job_id for job_id in self.stack.jobs.values_list("pk", flat=True) if job_id != early]
        chance.shuffle(ids)
        with ThreadPoolExecutor(8) as clients:
            statuses = list(clients.map(lambda job_id: self.cancel(job_id, chance.uniform(0, 0.06)), ids))
        self.stack.finished(*ids)
        rows = {job.pk: job for job in self.stack.jobs.all()}
        self.assertEqual([rows[job_id].status for job_id in ids], statuses)
        self.assertIn(Status.CANCELLED, statuses)
        self.assertEqual(self.cancel(early), Status.SUCCEEDED)
        for job in rows.values():
            self.assertEqual(job.output is None, job.status == Status.CANCELLED)

    def cancel(self, job_id: UUID, delay_s: float = 0.0) -> str:
        time.sleep(delay_s)  # the random moment that is the subject of the test
        return str(self.stack.post(f"/v1/jobs/{job_id}/cancel", None).json["status"])


class FairnessTests(StackCase):
    options = {
        "models": ONE_BY_ONE,
        "replicas": 1,
        "environment": {"API_KEY_REQUIRED": "1", "API_KEY_MAX_QUEUED": str(SHARE)},
    }

    def key(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.stack.issue_key(name)}"}

    def submit_as(self, headers: dict[str, str]) -> Any:
        return self.stack.post("/v1/jobs", {"model": "steady", "inputs": "x"}, headers=headers)

    def test_a_noisy_key_cannot_keep_a_quiet_one_waiting(self) -> None:
        noisy, quiet = self.key("noisy"), self.key("quiet")
        with ThreadPoolExecutor(4) as clients:
            flood = clients.map(lambda _: self.submit_as(noisy), range(1000))
            accepted = [self.submit_as(quiet) for _ in range(10)]
            refused = [answer for answer in flood if answer.status == 429]
        self.assertEqual({answer.status for answer in accepted}, {202})
        self.assertGreater(len(refused), 0)
        self.assertTrue(all("retry-after" in answer.headers for answer in refused))
        mine = self.stack.finished(*(UUID(answer.json["id"]) for answer in accepted))
        self.assertLess(max(self.overtaken_by(job) for job in mine), 2 * SHARE)

    def overtaken_by(self, job: Job) -> int:
        """Jobs that were started between this one's arrival and its start."""
        return self.stack.jobs.filter(started_at__gt=job.created_at, started_at__lt=job.started_at).count()
