"""A month of a service that has done a million jobs: of several models, owners, workers and outcomes."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from itertools import islice
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone
from tqdm import tqdm

from api.models import ApiKey, KeyUse
from inference.fields.ids import make_first_id, make_row_id
from inference.figures import rollup, tallies
from inference.figures.sample import SERVICE
from inference.models import (
    Act,
    ActKind,
    ActState,
    Bulk,
    Figure,
    Grain,
    Job,
    Mark,
    Status,
    Webhook,
    WebhookState,
    Worker,
    WorkerState,
)
from inference.store import job_rows
from inference.values.priority import Priority

MODELS = {"sentiment": 45, "embeddings": 25, "fill": 15, "entities": 10, "chat": 5}  # of a hundred jobs
UNUSED = "unused"  # a model of the catalog that nobody asks for
CATALOG = "".join(f'[{name}]\nengine = "tests.echo:EchoEngine"\n' for name in (*MODELS, UNUSED))
ENDS = {("succeeded", ""): 960, ("cancelled", ""): 10, ("expired", ""): 5, ("failed", "invalid_input"): 15,
        ("failed", "engine_error"): 6, ("failed", "timed_out"): 3, ("failed", "out_of_memory"): 1}  # fmt: skip
DAYS, KEPT_DAYS = 30, 7  # of jobs, and of the rows of workers that ended
OWNERS, WORKERS_A_DAY = 20, 2
IN_BULK, IN_PARTS = 0.15, 0.02  # shares of batches
OF_BULK, PARTS, LONGEST_BATCH = 1000, 20, 32
AT_ONCE = 20_000  # rows of a transaction
VECTOR_EVERY = 50  # an answer that is one: were each, the database would be eight times as large
DAY, SECOND = datetime.timedelta(days=1), datetime.timedelta(seconds=1)


class Month:
    """The same one each time, ending now."""

    def __init__(self, jobs: int, waiting: int) -> None:
        self.jobs, self.waiting = jobs, waiting
        self.now = timezone.now()
        self.dice = random.Random(1)
        self.workers = [[self.id_at(self.now - day * DAY) for _ in range(WORKERS_A_DAY)] for day in range(DAYS + 1)]
        self.bulk = Bulk(total=OF_BULK)

    def id_at(self, moment: datetime.datetime) -> UUID:
        return UUID(int=make_first_id(moment).int | self.dice.getrandbits(62) | self.dice.getrandbits(12) << 64)

    def fill(self) -> None:
        self.owners = User.objects.bulk_create(User(username=f"owner{number}") for number in range(OWNERS))
        self.keep_workers()
        finished = islice(self.finished(), self.jobs)
        with tqdm(total=self.jobs, unit="job", dynamic_ncols=True) as bar:
            while True:
                with transaction.atomic():
                    new = [job_rows.convert_job_to_row(job) for job in islice(finished, AT_ONCE)]
                    for chunk in job_rows.split_into_chunks(new):
                        job_rows.insert_jobs(chunk)
                bar.update(len(new))
                if len(new) < AT_ONCE:
                    break
        for chunk in job_rows.split_into_chunks([job_rows.convert_job_to_row(job) for job in self.unfinished()]):
            job_rows.insert_jobs(chunk)
        self.count()
        self.keep_others()

    def finished(self) -> Iterator[Job]:
        """By batches, evenly over the month, the oldest first."""
        made = 0
        while True:
            at = self.now - DAYS * DAY * max(1 - made / self.jobs, 1e-5)
            kind = self.dice.random()
            model = self.dice.choices(list(MODELS), list(MODELS.values()))[0]
            batch = self.of_parts(model, at) if kind < IN_PARTS else self.batch(model, at, in_bulk=kind < IN_BULK)
            for job in batch:
                made += 1
                yield job

    def batch(self, model: str, at: datetime.datetime, *, in_bulk: bool, **common: Any) -> Iterator[Job]:
        size = common.pop("batch_size", None) or self.dice.randint(1, LONGEST_BATCH)
        workers = self.workers[min(int((self.now - at) / DAY), DAYS)]
        started = at + SECOND * self.dice.expovariate(1.0)
        finished = started + SECOND * self.dice.uniform(0.01, 0.5)
        ran = {"batch": self.id_at(started), "batch_size": size, "worker": self.dice.choice(workers), "attempts": 1,
               "device": "cuda:0", "started_at": started}  # fmt: skip
        if in_bulk:
            common |= {"bulk_id": self.bulk_at(at, model), "priority": Priority.LOW}
        owner = self.owner()
        for place in range(size):
            status, code = self.dice.choices(list(ENDS), list(ENDS.values()))[0]
            has_run = status in (Status.SUCCEEDED, Status.FAILED)
            yield self.job(
                model,
                at,
                owner_id=owner,
                status=status,
                error_code=code,
                error_detail=code and "why, at length",
                finished_at=finished,
                output=self.answer(model) if status == Status.SUCCEEDED else None,
                bulk_index=place if in_bulk else None,
                **common,
                **(ran if has_run else {}),
            )

    def of_parts(self, model: str, at: datetime.datetime) -> Iterator[Job]:
        whole = self.job(
            model,
            at,
            owner_id=self.owner(),
            status=Status.SUCCEEDED,
            inputs=[],
            parts=PARTS,
            size=PARTS,
            attempts=1,
            started_at=at,
            finished_at=at + SECOND,
        )
        yield whole
        for place in range(PARTS):
            for part in self.batch(model, at, in_bulk=False, batch_size=1, whole=whole.pk):
                part.place = place
                yield part

    def unfinished(self) -> Iterator[Job]:
        """All at work, with a queue of each model."""
        for number in range(self.waiting):
            at = self.now - (self.waiting - number) * SECOND / 10
            yield self.job(self.dice.choice(list(MODELS)), at, owner_id=self.owner())
        for worker in self.workers[0]:
            ran = {"batch": make_row_id(), "worker": worker, "device": "cuda:0", "attempts": 1, "started_at": self.now,
                   "lease_until": self.now + DAY}  # fmt: skip
            for _ in range(LONGEST_BATCH):
                yield self.job("sentiment", self.now - SECOND, status=Status.RUNNING, **ran)

    def job(self, model: str, at: datetime.datetime, **values: Any) -> Job:
        own = {
            "created_at": at, "published_at": at, "length": self.dice.randint(3, 300),
            "inputs": "some words of a text " * self.dice.randint(1, 12),
            "request_id": f"{self.dice.getrandbits(128):032x}",
        }  # fmt: skip
        job = job_rows.make_unsaved_job(owner=None, model=model, **{**own, **values})
        job.id = self.id_at(at)
        return job

    def owner(self) -> int | None:
        """A few have most of the jobs, and a third nobody."""
        place = int(self.dice.paretovariate(0.7)) - 1
        return self.owners[place].pk if place < OWNERS and self.dice.random() > 0.3 else None

    def bulk_at(self, at: datetime.datetime, model: str) -> UUID:
        if self.dice.random() < LONGEST_BATCH / 2 / OF_BULK or not self.bulk.model:
            self.bulk = Bulk.objects.create(id=self.id_at(at), model=model, total=OF_BULK, created_at=at)
        return self.bulk.pk

    def answer(self, model: str) -> Any:
        if model == "embeddings" and not self.dice.randrange(VECTOR_EVERY):
            return [self.dice.random() for _ in range(384)]
        return {"label": "positive", "score": self.dice.random()}

    def keep_workers(self) -> None:
        for day, ids in enumerate(self.workers[:KEPT_DAYS]):
            at = self.now - day * DAY
            for number, pk in enumerate(ids):
                Worker.objects.create(
                    id=pk,
                    name=f"worker{number}@host",
                    pid=100 + number,
                    started_at=at - DAY,
                    heartbeat_at=at,
                    state=WorkerState.STOPPED if day else WorkerState.READY,
                    model_names=list(MODELS),
                    replicas_total=1,
                    replicas_ready=1,
                    devices=["cuda:0"],
                    replicas={"0": {"pid": 1, "device": "cuda:0", "models": dict.fromkeys(MODELS, "ready")}},
                )

    def count(self) -> None:
        """The figures, as if they had been counted and folded all the time."""
        spans = ((Grain.THREE_HOURS, DAYS * DAY), (Grain.TEN_MINUTES, 2 * DAY), (Grain.TICK, DAY / 48))
        new = [
            Figure(grain=Grain.EVER, start=rollup.SINCE_EVER, model=model, tally=self.tally(model)) for model in MODELS
        ]
        for grain, span in spans:
            length = rollup.LENGTH_S[grain] * SECOND
            first = self.now.timestamp() // length.total_seconds() * length.total_seconds()
            for place in range(int(span / length)):
                at = datetime.datetime.fromtimestamp(first, datetime.UTC) - place * length
                new += [
                    Figure(grain=grain, start=at, model=name, tally=self.tally(name)) for name in (*MODELS, SERVICE)
                ]
        Figure.objects.bulk_create(new, batch_size=500)

    def tally(self, model: str) -> tallies.Tally:
        if model == SERVICE:
            queued = dict.fromkeys(MODELS, self.waiting // len(MODELS))
            now = {"samples": 1, "queued": queued, "running": queued, "replicas": {"ready": 2, "busy": 2}}
            return {"now": now, "most": {"queued": queued, "oldest_s": dict.fromkeys(MODELS, 9.0)}}
        found: tallies.Tally = {"ended": {f"{status} {code}".strip(): count for (status, code), count in ENDS.items()}}
        for name in ("wait", "run", "batch"):
            for _ in range(20):
                tallies.add_value(found, name, self.dice.expovariate(1.0) + 0.01, unit=tallies.UNIT_S)
        return found | {"real": 9, "padded": 10, "engine_s": 1.0, "tokens": 5}

    def keep_others(self) -> None:
        """Webhooks of one job in twenty, keys with their use, acts and marks."""
        ids = Job.objects.filter(whole=None).order_by("-pk").values_list("pk", flat=True)
        states = [WebhookState.DELIVERED, WebhookState.GIVEN_UP]
        Webhook.objects.bulk_create(
            (
                Webhook(job_id=pk, url="https://example.org/hook", state=states[not number % 50])
                for number, pk in enumerate(ids[: self.jobs // 20])
            ),
            batch_size=500,
        )
        for owner in self.owners:
            key, _ = ApiKey.objects.issue_key(owner=owner, name="its service")
            KeyUse.objects.bulk_create(
                KeyUse(key=key, hour=self.now - DAY * hour / 24, requests=99) for hour in range(24 * DAYS)
            )
        Act.objects.bulk_create(
            Act(kind=ActKind.RETRY, state=ActState.DONE, newest=make_row_id(), counted=9) for _ in range(200)
        )
        Mark.objects.bulk_create(
            Mark(at=self.now - DAYS * DAY * share / 500, kind="started", text="a worker") for share in range(500)
        )
