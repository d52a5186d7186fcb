"""The whole service in a folder of its own, with a limit on nothing that a benchmark sends."""

from __future__ import annotations

import os
from collections.abc import Sequence
from uuid import UUID

import django
from django.db.models import QuerySet

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
django.setup()

from inference.models import WAITING, Job  # noqa: E402 - needs Django
from tests.stack import Stack  # noqa: E402


class Whole(Stack):
    def __init__(self, models: str, **environment: str) -> None:
        unlimited = {"MAX_ESTIMATED_WAIT_S": "0", "LOG_LEVEL": "WARNING", **environment}
        super().__init__(models=models, environment=unlimited)

    @property
    def unfinished(self) -> QuerySet[Job]:
        return self.jobs.filter(status__in=WAITING)

    def submit_bulk(self, inputs: Sequence[object], **fields: str) -> UUID:
        answer = self.post("/v1/jobs/bulk", {"inputs": inputs, **fields})
        if answer.status != 202:
            raise SystemExit(f"not accepted: {answer.status} {answer.body!r:.300}")
        return UUID(answer.json["id"])
