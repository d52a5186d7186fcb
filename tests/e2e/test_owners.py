"""Who has one job waits for a few batches, and not for the thousands of somebody else or of a higher priority."""

from __future__ import annotations

from typing import Any, ClassVar
from unittest import skipUnless
from uuid import UUID

from inference.models import Status
from tests import rabbitmq
from tests.e2e.case import StackCase

MODELS = """
[echo]
engine = "tests.echo:EchoEngine"
max_batch_size = 4
time_limit_s = 180
options = { fixed_ms = 200 }  # a worker looks for others once in some of these, also on a slow machine
"""
PARTS = 150  # of a list: many times what a worker holds
LIST = [f"text {number}" for number in range(4 * PARTS)]


class OwnersTests(StackCase):
    environment: ClassVar[dict[str, str]] = {}
    keys: ClassVar[dict[str, dict[str, str]]]  # headers, by owner

    @classmethod
    def setUpClass(cls) -> None:
        cls.options = {"models": MODELS, "environment": {"API_KEY_MAX_QUEUED": "0", **cls.environment}}
        super().setUpClass()
        cls.keys = {name: {"Authorization": f"Bearer {cls.stack.issue_key(name)}"} for name in ("many", "few")}

    def submit(self, owner: str, inputs: Any, **fields: Any) -> UUID:
        answer = self.stack.post("/v1/jobs", {"model": "echo", "inputs": inputs, **fields}, headers=self.keys[owner])
        self.assertEqual(answer.status, 202, answer.body)
        return UUID(answer.json["id"])

    def parts_before(self, whole: UUID, job_id: UUID) -> int:
        """Return how many parts of a list were begun while a job waited and ran, and cancel the others."""
        (job,) = self.stack.finished(job_id)
        self.assertEqual(job.status, Status.SUCCEEDED)
        begun = self.stack.jobs.filter(whole=whole, started_at__range=(job.created_at, job.finished_at)).count()
        self.stack.request("POST", f"/v1/jobs/{whole}/cancel", headers=self.keys["many"])
        self.stack.finished(whole)
        return begun

    def test_a_text_of_another_owner_does_not_wait_for_a_list(self) -> None:
        whole = self.submit("many", LIST)
        self.assertLess(self.parts_before(whole, self.submit("few", "text")), PARTS / 2)

    def test_a_list_of_another_owner_has_its_share(self) -> None:
        whole = self.submit("many", LIST)
        self.assertLess(self.parts_before(whole, self.submit("few", LIST[: len(LIST) // 6])), PARTS * 2 / 3)

    def test_a_lower_priority_is_not_kept_out_for_ever(self) -> None:
        for priority in ("normal", "low"):
            with self.subTest(priority):
                whole = self.submit("many", LIST, priority="high")
                self.assertLess(self.parts_before(whole, self.submit("many", "text", priority=priority)), PARTS / 2)


@skipUnless(rabbitmq.is_installed(), "rabbitmq-server is not installed")
class RabbitMQOwnersTests(OwnersTests):
    @classmethod
    def setUpClass(cls) -> None:
        server = cls.enterClassContext(rabbitmq.RabbitMQ())
        cls.environment = {"BROKER_URL": server.url}
        super().setUpClass()
