"""Row 50: what an operator meets, caused one after the other: each is named in words by `manage.py status`, and no more
once it is mended."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import psycopg
from django.db.models.functions import Now

from inference import clock
from inference.broker.address import find_temporary_folder
from inference.fields.ids import make_first_id
from inference.models import Bulk, Figure, Grain, PausedModel, Webhook, WebhookState
from tests.conditions import eventually
from tests.faults import database
from tests.faults.backends import REDIS, SQLITE
from tests.faults.database import OnPostgres
from tests.faults.fault import Fault
from tests.faults.loading import FRAGILE, not_loading
from tests.faults.proxy import Mode, Proxy
from tests.faults.service import Service
from tests.faults.space import disk_of, not_mountable
from tests.faults.trial import Trial
from tests.inference.webhooks.test_delivery import SECRET, Receiver, receiving
from tests.ports import HOST
from tests.stack import ECHO, name_gpus
from tools.launcher import programs
from tools.launcher.supervisor import Child, Program

NAMED_S = 30.0
LOOK_S = "0.3"
QUEUED = 240
CRASHES = 5
ROOM_MB, TAKEN_MB = 1024 + 128, 256  # of a disk: less than 1 GiB left is too little
MODELS = f"""{ECHO}
[slow]
engine = "tests.echo:EchoEngine"
max_batch_size = 8
options = {{ fixed_ms = 300 }}

[quiet]
engine = "tests.echo:EchoEngine"

[shaky]
engine = "tests.faults.engines:Shaky"
max_batch_size = 1
"""
DEVICES = "cuda:0,cuda:1"  # which nobody looks for
AGED = datetime.timedelta(seconds=40)  # that a row is made older: half a minute is waited for before anything is said
STATUS = Program(name="status", command=(sys.executable, "manage.py", "status", "--json", "--watch", LOOK_S))
Cause = Callable[[Any, Trial], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Named:
    """What is said while `cause` is entered, and not any more some time after it was left."""

    code: str
    words: str  # a pattern
    cause: Cause


class Drill(Fault):
    """The list is read from the command that operators type, which looks on all the while."""

    recovery_limit_s = 60.0
    chunk = 1
    ROUNDS: ClassVar[tuple[tuple[Named, ...], ...]]  # what is the case at the same time

    def trial(self, trial: Trial) -> None:
        self.said: list[dict[str, str]] = []  # last
        self.reported_items: list[dict[str, str]] = []  # since the round began
        program = replace(STATUS, environment=trial.service.environment)
        trial.service.children["status"] = Child(program, self.take, trial.service.reaper)
        self.prepare(trial)
        for together in self.ROUNDS:
            self.one_round(trial, [named for named in together if self.can_be(named)])
        trial.until(lambda: self.said == [], "all is well again", NAMED_S)
        trial.expect(self.said == [], f"still said: {self.said}")
        trial.service.children["status"].stop()

    def prepare(self, trial: Trial) -> None:
        trial.until(lambda: self.looked and self.said == [], "all is well at first", NAMED_S)

    def can_be(self, named: Named) -> bool:
        return True

    looked = False

    def take(self, name: str, line: str) -> None:
        """A line of the command."""
        if line.startswith("{"):
            self.said, self.looked = json.loads(line)["attention"], True
            self.reported_items += self.said

    def one_round(self, trial: Trial, together: list[Named]) -> None:
        self.reported_items = []
        with contextlib.ExitStack() as causes:
            for named in together:
                causes.enter_context(named.cause(self, trial))
            self.wait(trial, "until the last was named", lambda: all(map(self.is_said, together)), together)
        codes = {named.code for named in together}
        self.wait(trial, "until the last was no more", lambda: not codes & {i["code"] for i in self.said}, together)

    def is_said(self, named: Named) -> bool:
        return any(item["code"] == named.code and re.search(named.words, item["text"]) for item in self.reported_items)

    def wait(self, trial: Trial, what: str, condition: Callable[[], bool], together: list[Named]) -> None:
        began_at = time.monotonic()
        trial.until(condition, f"{', '.join(named.code for named in together)} {what}", NAMED_S)
        trial.expect(condition(), f"said is {self.said}")
        took_s = time.monotonic() - began_at
        trial.measured[f"s {what}"] = max(took_s, trial.measured.get(f"s {what}", 0.0))


class OfAService(Drill):
    row, title, ci, full = "50", "an operator's drill: each is named within 30 s, and no more once mended", 1, 5
    takes_s = 40.0
    databases = (SQLITE,)
    LONG = frozenset({"DeviceWithdrawn", "WorkerCutOff"})  # which a quick run leaves out

    @contextlib.contextmanager
    def service(self) -> Iterator[Service]:
        with Proxy() as self.proxy, Proxy() as self.workers_own, contextlib.ExitStack() as mounted:
            self.has_disk = not not_mountable()
            if self.has_disk:
                folder = mounted.enter_context(
                    tempfile.TemporaryDirectory(prefix="drill-", dir=find_temporary_folder())
                )
                mounted.enter_context(disk_of(ROOM_MB, Path(folder)))
                mounted.enter_context(mock.patch.object(tempfile, "tempdir", folder))
            of_torch = Path(mounted.enter_context(tempfile.TemporaryDirectory()))
            environment = {
                "REDIS_URL": f"redis://{HOST}:{self.proxy.port}/0", "WEBHOOK_HOSTS": HOST, "WEBHOOK_SECRET": SECRET,
                "WEBHOOK_ALLOW_PRIVATE": "1", **name_gpus(of_torch, len(DEVICES.split(","))),
            }  # fmt: skip
            service = self.make(models=MODELS, environment=environment, devices=DEVICES)
            self.proxy.target = self.workers_own.target = service.socket
            with service:
                service.start(programs.make_webhook_sender())
                yield service

    def can_be(self, named: Named) -> bool:
        left_out = self.LONG if self.quick else set()
        if not self.has_disk:
            left_out |= {"DiskFills"}
        if self.backends.broker != REDIS:
            left_out |= {"WorkerCutOff"}  # by the proxy that it has to Redis
        return named.code not in left_out

    def prepare(self, trial: Trial) -> None:
        super().prepare(trial)
        ticks = Figure.objects.using(trial.service.alias).filter(grain=Grain.TICK)
        trial.until(ticks.exists, "a worker has noted how many wait", NAMED_S)

    # Side by side

    @contextlib.contextmanager
    def paused(self, trial: Trial) -> Iterator[None]:
        pause = PausedModel.objects.using(trial.service.alias).create(model="quiet")
        trial.submit_some(3, model="quiet")
        yield
        pause.delete()

    @contextlib.contextmanager
    def device_fails(self, trial: Trial) -> Iterator[None]:
        file = trial.service.folder / "shaky-1"
        file.touch()
        trial.until(lambda: self.is_withdrawn(trial), "the device is withdrawn")
        yield
        file.unlink()

    def is_withdrawn(self, trial: Trial) -> bool:
        """After two more jobs, of which it may have failed with one."""
        jobs = trial.submit_some(2, model="shaky")
        trial.until(lambda: not trial.service.unfinished(jobs), "the other device has run them")
        return any(replica.withdrawn_s for replica in trial.service.worker_row().replicas.values())

    @contextlib.contextmanager
    def failing(self, trial: Trial) -> Iterator[None]:
        for _ in range(8):
            trial.submit({"text": trial.text(), "fail": "exception"}, "engine_error")
        yield
        trial.submit_together([trial.text() for _ in range(400)], model="echo")

    @contextlib.contextmanager
    def webhooks_refused(self, trial: Trial) -> Iterator[None]:
        hooks = Webhook.objects.using(trial.service.alias)
        with receiving(503) as url:
            for _ in range(6):
                trial.submit(trial.text(), webhook=url)
            yield
            Receiver.status = 204
            sent = hooks.filter(state=WebhookState.DELIVERED)
            trial.until(lambda: self.send_now(trial) == 0 and sent.count() == 6, "the notices are delivered")

    def send_now(self, trial: Trial) -> int:
        """As the list in the admin does."""
        waiting = Webhook.objects.using(trial.service.alias).filter(state=WebhookState.PENDING, attempts__gte=1)
        return waiting.update(attempts=0, due_at=Now())

    @contextlib.contextmanager
    def too_many(self, trial: Trial) -> Iterator[None]:
        trial.submit_together([trial.text() for _ in range(QUEUED)], model="slow")
        yield

    @contextlib.contextmanager
    def filled(self, trial: Trial) -> Iterator[None]:
        ballast = trial.service.folder / "ballast"
        with open(ballast, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, TAKEN_MB << 20)
        yield
        ballast.unlink()

    @contextlib.contextmanager
    def drained(self, trial: Trial) -> Iterator[None]:
        trial.service.workers.update(is_to_rest=True)
        yield
        trial.service.workers.update(is_to_rest=False)

    @contextlib.contextmanager
    def file_refused(self, trial: Trial) -> Iterator[None]:
        trial.service.models_file.write_text(f"{MODELS}\n[quiet]")
        yield
        trial.service.models_file.write_text(MODELS)

    @contextlib.contextmanager
    def broker_slow(self, trial: Trial) -> Iterator[None]:
        with self.proxy.failing(Mode.SLOW):
            yield

    @contextlib.contextmanager
    def not_sent(self, trial: Trial) -> Iterator[None]:
        trial.service.children["webhooks"].stop()
        with receiving(204) as url:
            job = trial.submit(trial.text(), webhook=url)
            hook = Webhook.objects.using(trial.service.alias).filter(job=job)
            trial.until(lambda: not trial.service.unfinished([job]), "the job ends")
            trial.service.jobs.filter(pk=job).update(finished_at=Now() - AGED)
            hook.update(due_at=Now() - AGED)
            yield
            trial.service.start(programs.make_webhook_sender())
            trial.until(hook.filter(state=WebhookState.DELIVERED).exists, "the notice is delivered")

    @contextlib.contextmanager
    def not_worked_on(self, trial: Trial) -> Iterator[None]:
        """An open bulk, as each file batch has one."""
        posted = make_first_id(clock.get_database_time() - 2 * AGED)
        Bulk.objects.using(trial.service.alias).create(pk=posted, model="", total=1, is_open=True)
        yield
        trial.service.start(programs.make_batch_runner())

    @contextlib.contextmanager
    def message_lost(self, trial: Trial) -> Iterator[None]:
        """And not sent again before it is mended."""
        job = trial.service.jobs.filter(pk=trial.store("quiet"))
        job.update(created_at=Now() - AGED, published_at=Now() + AGED)
        yield
        job.update(published_at=None)

    # One after the other

    @contextlib.contextmanager
    def cannot_load(self, trial: Trial) -> Iterator[None]:
        trial.service.models_file.write_text(MODELS + FRAGILE)
        with not_loading(trial):
            yield
        serves = lambda: "fragile" in trial.service.worker_row().model_names  # noqa: E731
        trial.until(serves, "it is loaded once it can be")
        trial.service.models_file.write_text(MODELS)

    @contextlib.contextmanager
    def crashes(self, trial: Trial) -> Iterator[None]:
        for _ in range(CRASHES):
            pid = eventually(lambda: trial.service.replicas_alive() and trial.service.replica_pids()[0])
            os.kill(pid, signal.SIGKILL)
            trial.until(lambda pid=pid: trial.service.replica_pids()[0] != pid, "it is started again")
        yield
        trial.service.children["worker1"].stop()
        trial.service.start_worker()
        trial.service.ready()

    @contextlib.contextmanager
    def worker_killed(self, trial: Trial) -> Iterator[None]:
        trial.service.children["worker1"].kill()
        yield
        trial.service.start_worker(REDIS_URL=f"redis://{HOST}:{self.workers_own.port}/0")
        trial.service.ready()

    @contextlib.contextmanager
    def cut_off(self, trial: Trial) -> Iterator[None]:
        with self.workers_own.failing(Mode.CUT):
            yield

    @contextlib.contextmanager
    def broker_away(self, trial: Trial) -> Iterator[None]:
        trial.service.broker.kill()
        yield
        trial.service.broker.start()

    @contextlib.contextmanager
    def locked(self, trial: Trial) -> Iterator[None]:
        with database.locked(trial.service):
            yield

    ROUNDS = (
        (
            Named("DeviceWithdrawn", r"cuda:1 of worker1@\S+ gets no work for \d+ s", device_fails),
            Named("ModelPaused", "quiet has been paused since", paused),
            Named("FailuresUnusual", r"8 jobs of echo failed with engine_error in the last minutes", failing),
            Named("WebhooksFail", rf"cannot be delivered to {HOST}, \d wait: answered 503", webhooks_refused),
            Named("QueueGrows", r"jobs of slow wait, the oldest for \d+ s; at \S+ UTC there were \d", too_many),
            Named("DiskFills", r"The disk of \S+ has \d+ MiB left", filled),
        ),
        (
            Named("WorkerDrained", "worker1@.* is drained and takes no jobs", drained),
            Named("ModelUnserved", "No worker serves echo: its worker is drained", drained),
            Named("ModelsFileRefused", "models.toml", file_refused),
            Named("BrokerSlow", r"The broker took 0\.\d s to answer a ping", broker_slow),
        ),
        (
            Named("WorkerDegraded", "does not serve all of its models: fragile: told not to load", cannot_load),
            Named("WebhooksWait", "due and no process sends them: 1 wait", not_sent),
            Named("FileBatchesWait", "No process works on the batches of /v1/batches: 1 wait", not_worked_on),
            Named("QueueStuck", r"1 job of quiet waits, the oldest for 4\d s, and no replica is busy", message_lost),
        ),
        (Named("ReplicaCrashes", rf"Replica 0 of worker1@.*, on cuda:0, ended {CRASHES} times", crashes),),
        (Named("WorkerGone", "worker1@.* has been gone since .* It served echo, quiet, shaky, slow", worker_killed),),
        (Named("WorkerCutOff", r"worker1@\S+ is not connected to the broker", cut_off),),
        (Named("BrokerAway", "The broker does not answer", broker_away),),
        (Named("DatabaseLocked", "The database accepts no writes: database is locked", locked),),
    )


class OfADatabase(OnPostgres, Drill):
    row, title, ci, full = "50", "the same of a PostgreSQL that is slow, locked, stopped", 1, 5
    takes_s = 25.0
    options = {"models": ECHO}

    @contextlib.contextmanager
    def service(self) -> Iterator[Service]:
        with Proxy() as self.proxy:
            service = self.make(environment={"DATABASE_URL": f"postgres://inference@{HOST}:{self.proxy.port}/postgres"})
            self.proxy.target = database.server(service).folder / ".s.PGSQL.5432"
            with service:
                yield service

    @contextlib.contextmanager
    def slow(self, trial: Trial) -> Iterator[None]:
        with self.proxy.failing(Mode.SLOW):
            yield

    @contextlib.contextmanager
    def locked(self, trial: Trial) -> Iterator[None]:
        """As by a migration, or VACUUM FULL."""
        with psycopg.connect(database.server(trial.service).url()) as connection:
            connection.execute("LOCK TABLE inference_job IN ACCESS EXCLUSIVE MODE")
            yield

    @contextlib.contextmanager
    def stopped(self, trial: Trial) -> Iterator[None]:
        with database.stopped(trial.service):
            yield

    ROUNDS = (
        (Named("DatabaseSlow", r"The database took 0\.\d s to answer SELECT 1", slow),),
        (Named("DatabaseLocked", r"a statement waits for \d+ s for a lock of process \d+", locked),),
        (Named("DatabaseAway", "The database does not answer: ", stopped),),
    )
