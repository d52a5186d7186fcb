"""The service behind a pooler that gives each transaction another session of PostgreSQL."""

from __future__ import annotations

from unittest import skipUnless
from uuid import UUID

from django.test import tag

from inference.models import Job, Status
from tests import databases, echo, pgbouncer
from tests.conditions import PATIENCE_S, ago, eventually
from tests.e2e.case import ShowingLog
from tests.pgbouncer import PgBouncer
from tests.second_look import TAG
from tests.stack import Stack

MODELS = """
[echo]
engine = "tests.echo:EchoEngine"
max_batch_size = 4
time_limit_s = 180
max_queued = 10000
"""
LOST = 600  # more than are read at once
TEXTS = [f"text {number}" for number in range(10)]  # in three parts


@skipUnless(pgbouncer.is_installed(), "pgbouncer is not installed")
@tag(TAG)
class PoolerTests(ShowingLog):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        pooler = cls.enterClassContext(PgBouncer(cls.enterClassContext(databases.postgres())))
        environment = {"DATABASE_URL": pooler.url()}
        cls.stack = cls.enterClassContext(Stack(models=MODELS, environment=environment))

    def test_jobs_with_lost_messages_are_sent_again(self) -> None:
        lost = [Job(model="echo", inputs=f"lost {number}", created_at=ago(PATIENCE_S)) for number in range(LOST)]
        self.stack.jobs.bulk_create(lost)
        found = self.stack.finished(*(job.pk for job in lost))
        self.assertEqual({job.status for job in found}, {Status.SUCCEEDED})

    def test_a_list_in_parts_is_read_again_to_be_retried(self) -> None:
        self.hold()
        whole = self.stack.submit([{"text": text, "fail": echo.Fail.HELD} for text in TEXTS])
        eventually(lambda: self.stack.jobs.filter(whole=whole, status=Status.RUNNING).exists(), "it has begun")
        self.assertEqual(self.stack.post(f"/v1/jobs/{whole}/cancel", None).status, 200)
        again = self.stack.post(f"/v1/jobs/{whole}/retry", None)
        self.assertEqual(again.status, 202, again.body)
        self.stack.release()
        (job,) = self.stack.finished(UUID(again.json["id"]))
        self.assertEqual(job.output, [echo.expected({"text": text, "fail": echo.Fail.HELD}) for text in TEXTS])
