"""A client's server is told of finished jobs by the real workers."""

from __future__ import annotations

import json

from tests.conditions import eventually
from tests.e2e.case import StackCase
from tests.inference.webhooks.test_delivery import SECRET, Receiver, receiving
from tools.launcher import programs


class TestWebhooks(StackCase):
    options = {
        "environment": {"WEBHOOK_HOSTS": "127.0.0.1", "WEBHOOK_SECRET": SECRET, "WEBHOOK_ALLOW_PRIVATE": "1"},
        "replicas": 1,
    }

    def test_a_job_that_succeeded_and_one_that_failed_are_sent(self) -> None:
        self.stack.start(programs.make_webhook_sender())
        with receiving() as url:
            jobs = {str(self.stack.submit(inputs, webhook=url)) for inputs in ("a", {"fail": "exception"})}
            eventually(lambda: len(Receiver.got) == 2, "both notices arrive")
            notices = [json.loads(body)["data"] for _, body in Receiver.got]
        self.assertEqual({job["id"] for job in notices}, jobs)
        self.assertEqual({job["status"] for job in notices}, {"succeeded", "failed"})
