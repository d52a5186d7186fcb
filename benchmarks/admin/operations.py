"""All that an operator, a scrape or a script asks for, by groups: the slowest of each is published."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from benchmarks.admin.fill import MODELS, UNUSED, Month
from inference import errors
from inference.figures import series
from inference.models import Act, Bulk, Job, Status, Webhook, WebhookState, WorkerState
from inference.values.priority import Priority

FIRST_ROWS = 600  # of an export: its first chunk, and the next
JOBS = "admin:inference_job_changelist"
TICKED = {"action": "retry_jobs", "_selected_action": [str(uuid4())], "select_across": "1"}


@dataclass(frozen=True, slots=True)
class Operation:
    group: str
    name: str
    do: Callable[[], object]


class Operations:
    def __init__(self, client: Client, month: Month) -> None:
        self.client, self.month = client, month

    def __iter__(self) -> Iterator[Operation]:
        yield from self.first_pages()
        yield from self.lists()
        yield from self.filters()
        yield from self.searches()
        yield from self.pages()
        yield from self.others()

    def get(self, group: str, url: str, **query: str) -> Operation:
        if ":" in url:
            url = reverse(url)
        full = f"{url}?{urlencode(query)}" if query else url
        return Operation(group, full, lambda: self.read(full))

    def read(self, url: str) -> None:
        answer: Any = self.client.get(url)
        if answer.status_code != 200:
            raise SystemExit(f"\n{url} answers {answer.status_code}")
        if answer.streaming:
            list(islice(answer.streaming_content, FIRST_ROWS))

    def first_pages(self) -> Iterator[Operation]:
        yield self.get("first page", "admin:index")
        yield self.get("first page, its tables again", "/admin/now")
        for name in series.RANGES:
            for model in ("", "sentiment"):
                yield self.get("charts", "/admin/figures", range=name, model=model)

    def lists(self) -> Iterator[Operation]:
        yield self.get("jobs", JOBS)
        yield self.get("jobs, another page", JOBS, p="2")
        yield self.get("jobs, another page", JOBS, p="200")
        for form in ("csv", "jsonl"):
            yield self.get("export, its beginning", reverse("admin:inference_job_export", args=[form]))
        for name in ("pausedmodel", "worker", "webhook", "act"):
            yield self.get("other lists", f"admin:inference_{name}_changelist")
        for name in ("api_apikey", "auth_user"):
            yield self.get("other lists", f"admin:{name}_changelist")
        yield self.get("other lists", "admin:inference_job_batches")
        yield self.get("other lists", "admin:inference_worker_changelist", ended="all")
        for state in WebhookState.values:
            yield self.get("other lists", "admin:inference_webhook_changelist", state__exact=state)
        for state in WorkerState.values:
            yield self.get("other lists", "admin:inference_worker_changelist", state__exact=state)

    def filters(self) -> Iterator[Operation]:
        """Each by itself, and two of them, of which each finds much, little and nothing."""
        workers = [str(day[0]) for day in (self.month.workers[place] for place in (0, 5, 20))]
        codes = [error.code for error in errors.JobFailure.__subclasses__()]
        choices: dict[str, list[Any]] = {
            "status__exact": ["succeeded", "running", "failed", "expired", "queued", "cancelled"],
            "model": [*MODELS, UNUSED, "gone"],
            "accepted": ["10m", "1h", "1d", "7d"],
            "priority__exact": Priority.values, "worker": [*workers, str(uuid4())], "error_code": codes,
        }  # fmt: skip
        for name, values in choices.items():
            for value in values:
                yield self.get(f"jobs by {name.partition('_')[0]}", JOBS, **{name: value})
        for one, other in combinations(choices, 2):
            for value in choices[one][:: len(choices[one]) // 3 or 1]:
                for second in choices[other][:: len(choices[other]) // 3 or 1]:
                    yield self.get("jobs by two filters", JOBS, **{one: value, other: second})

    def searches(self) -> Iterator[Operation]:
        jobs = Job.objects.order_by("pk")
        for job in (jobs[self.month.jobs // 2], jobs[10]):
            yield self.get("jobs by id", JOBS, q=str(job.pk))
            yield self.get("jobs by an id's end", JOBS, q=job.pk.hex[-8:])
            yield self.get("jobs by a request's id", JOBS, q=job.request_id)
        yield self.get("jobs by an id's end", JOBS, q="00000000")
        yield self.get("jobs by a request's id", JOBS, q="nobody's")
        whole, bulk = jobs.filter(parts__gt=0).first(), Bulk.objects.first()
        assert whole
        assert bulk
        yield self.get("jobs of a list, a bulk, a batch", JOBS, whole=str(whole.pk))
        yield self.get("jobs of a list, a bulk, a batch", JOBS, bulk=str(bulk.pk))
        yield self.get("jobs of a list, a bulk, a batch", JOBS, batch=str(jobs[1000].batch or uuid4()))

    def pages(self) -> Iterator[Operation]:
        jobs = Job.objects.order_by("-pk")
        for job in (*(jobs.filter(status=status).first() for status in Status), jobs.filter(parts__gt=0).first()):
            assert job
            yield self.get("a job's page", reverse("admin:inference_job_change", args=[job.pk]))
        batch = jobs.filter(status=Status.SUCCEEDED, batch__isnull=False)[0].batch
        yield self.get("a batch's page", reverse("admin:inference_job_batch", args=[batch]))
        for name in (*MODELS, UNUSED):
            yield self.get("a model's page", reverse("admin:inference_pausedmodel_change", args=[name]))
        for name, row in (("worker", self.month.workers[0][0]), ("webhook", Webhook.objects.all()[0].pk),
                          ("act", Act.objects.all()[0].pk)):  # fmt: skip
            yield self.get("other pages", reverse(f"admin:inference_{name}_change", args=[row]))

    def others(self) -> Iterator[Operation]:
        for query in ({}, {"status__exact": Status.FAILED}, {"model": "sentiment"}):
            url = f"{reverse(JOBS)}?{urlencode(query)}"
            yield Operation(
                "an act on all that is found, counted", url, functools.partial(self.client.post, url, TICKED)
            )
        yield self.get("/metrics", "/metrics")
        yield Operation("manage.py status", "manage.py status", self.status)

    def status(self) -> None:
        with redirect_stdout(io.StringIO()), suppress(SystemExit):  # what it finds is told by that
            call_command("status", stdout=io.StringIO())
