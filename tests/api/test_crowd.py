"""Many clients at once against the real service: rows 18, 26 and 27 of the fault matrix, and blocking in numbers."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

from inference.models import Job, Status
from tests.api.crowd import MODELS, Outcome, crowd
from tests.conditions import PATIENCE_S, eventually
from tests.e2e.case import StackCase

CLIENTS, ROOM = 150, 40
CANCELS = 200
QUICK = """
[quick]
engine = "tests.echo:EchoEngine"
max_batch_size = 4
options = { fixed_ms = 15, gate = "held" }
time_limit_s = 300
"""
ONE_BY_ONE = """
[steady]
engine = "tests.echo:EchoEngine"
max_batch_size = 1
options = { fixed_ms = 30, gate = "held" }
time_limit_s = 300
"""
SHARE = 40  # jobs of one owner that may wait


class CrowdCase(StackCase):
    def setUp(self) -> None:
        super().setUp()
        self.hold()


class CrowdTests(CrowdCase):
    options = {"models": MODELS + QUICK, "replicas": 1, "environment": {"MAX_WAITING_REQUESTS": str(ROOM)}}

    def test_each_of_many_blocking_clients_gets_an_answer_it_can_go_on_with(self) -> None:
        outcome = Outcome()
        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(crowd, self.stack.port, CLIENTS, outcome, timeout_s=PATIENCE_S)
            eventually(lambda: len(outcome.statuses) == CLIENTS - ROOM, "whoever finds no room is answered")
            self.stack.release()
            done.result()
        self.assertEqual(outcome.lacking, [])
        self.assertEqual(outcome.answers, {"200": ROOM, "504 not_finished": CLIENTS - ROOM})

    def test_what_was_answered_as_cancelled_never_succeeds(self) -> None:
        chance = random.Random(26)
        self.stack.post("/v1/jobs/bulk", {"model": "quick", "inputs": ["text"] * CANCELS})
        first, *ids = self.stack.jobs.filter(model="quick").values_list("pk", flat=True)
        self.assertEqual(self.cancel(first), Status.CANCELLED)
        self.stack.release()
        chance.shuffle(ids)
        with ThreadPoolExecutor(8) as clients:
            statuses = list(clients.map(lambda job_id: self.cancel(job_id, chance.uniform(0, 0.06)), ids))
        late = self.stack.submit("text", model="quick")
        self.stack.finished(*ids, late)
        self.assertEqual(self.cancel(late), Status.SUCCEEDED)
        rows = {job.pk: job for job in self.stack.jobs.filter(model="quick")}
        self.assertEqual([rows[job_id].status for job_id in (first, *ids)], [Status.CANCELLED, *statuses])
        for job in rows.values():
            self.assertEqual(job.output is None, job.status == Status.CANCELLED)

    def cancel(self, job_id: UUID, delay_s: float = 0.0) -> str:
        time.sleep(delay_s)  # the random moment that is the subject of the test
        return str(self.stack.post(f"/v1/jobs/{job_id}/cancel", None).json["status"])


class FairnessTests(CrowdCase):
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
        noisy, quiet, over = self.key("noisy"), self.key("quiet"), threading.Event()

        def flood() -> None:
            while not over.is_set():
                self.flood.append(self.submit_as(noisy))

        self.flood: list[Any] = []
        with ThreadPoolExecutor(2) as clients:
            floods = [clients.submit(flood) for _ in range(2)]
            try:
                eventually(lambda: [answer for answer in self.flood if answer.status == 429], "the flood is refused")
                accepted = [self.submit_as(quiet) for _ in range(10)]
                self.stack.release()
                mine = self.stack.finished(*(UUID(answer.json["id"]) for answer in accepted))
            finally:
                over.set()
        self.assertEqual([flood.exception() for flood in floods], [None, None])
        refused = [answer for answer in self.flood if answer.status == 429]
        self.assertEqual({answer.status for answer in self.flood}, {202, 429})
        self.assertTrue(all("retry-after" in answer.headers for answer in refused))
        self.assertLess(max(self.overtaken_by(job) for job in mine), 2 * SHARE)

    def overtaken_by(self, job: Job) -> int:
        """Jobs that were started between this one's arrival and its start."""
        return self.stack.jobs.filter(started_at__gt=job.created_at, started_at__lt=job.started_at).count()
