"""Lazy models in real workers: loaded for their jobs, by turns where not all fit."""

from __future__ import annotations

import os
import random
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

from benchmarks.simulator.turns import Arrival, LazyModel, Turns
from inference.fields.worker_documents import ModelState
from inference.models import Status, Worker, WorkerState
from tests import heavy
from tests.conditions import eventually
from tests.e2e.case import ShowingLog
from tests.echo import Fail
from tests.stack import ECHO, Stack

QUICK = {"WORKER_HEARTBEAT_S": "0.5"}
LOAD = re.compile(r"to be loaded: ([\w-]+)")


def make(models: str, *, room_mb: int = 0, **options: Any) -> Stack:
    environment = {**QUICK, "REPLICA_MEMORY_MB": str(room_mb)}
    stack = Stack(**{"models": models, "replicas": 1, "environment": environment, **options})
    for megabytes in heavy.SIZES:
        heavy.weights(stack.folder, megabytes)
    return stack


class LazyCase(ShowingLog):
    def start(self, models: str, **options: Any) -> None:
        self.stack = self.enterContext(make(models, **options))

    def file(self, name: str) -> Path:
        return self.stack.folder / name

    def row(self) -> Worker:
        return self.stack.workers.get(pid=self.stack.children["worker1"].pid)

    def state_of(self, model: str) -> str:
        entries = {entry.name: entry for entry in self.row().catalog.models}
        return entries[model].state

    def loads(self, *models: str) -> list[str]:
        """Of these, or of all."""
        found = (LOAD.search(line) for line in list(self.stack.log))
        return [load[1] for load in found if load and load[1] != "none" and (not models or load[1] in models)]

    def assert_answered(self, ids: list[UUID], *, attempts: int = 1) -> None:
        jobs = self.stack.finished(*ids)
        self.assertEqual({(job.status, job.error_detail) for job in jobs}, {(Status.SUCCEEDED, "")})
        self.assertLessEqual(max(job.attempts for job in jobs), attempts)


class TenModelsTests(LazyCase):
    """Ten models of which three fit."""

    names = [f"model{number}" for number in range(10)]

    def setUp(self) -> None:
        self.start(heavy.tables(*self.names), room_mb=110)

    def test_a_flood_for_all_of_them_loads_each_once(self) -> None:
        chance = random.Random(1)
        for name in self.names:
            self.file(f"held-{name}").touch()
        counts = Counter([*self.names, *chance.choices(self.names, k=70)])
        jobs = [job for name in counts for job in self.stack.submit_together(["text"] * counts[name], model=name)]
        for name in self.names:
            self.file(f"held-{name}").unlink()
        self.assert_answered(jobs)
        self.assertEqual(sorted(self.loads()), self.names)

    def test_one_after_the_other_they_are_loaded_as_in_the_simulator(self) -> None:
        """Expect that models are loaded again that have left, and none that is still there."""
        requested = [*self.names, *self.names[-3:], *self.names[:3]]
        for name in requested:
            self.assert_answered([self.stack.submit("text", model=name)])
        self.assertEqual(self.loads(), [*self.names, *self.names[:3]])
        arrivals = [Arrival(number * 60.0, name) for number, name in enumerate(requested)]
        model = LazyModel(memory=32, load_s=0.1, call_s=0.01)
        outcome = Turns(dict.fromkeys(self.names, model), arrivals, room=110).run()
        self.assertEqual(self.loads(), [name for _, name in outcome.loads])


class LifeTests(LazyCase):
    """On one worker, of a model a test."""

    @classmethod
    def setUpClass(cls) -> None:
        models = heavy.tables("broken", "killed", "crashing", "late") + heavy.tables("idle", idle_unload_s=2.0)
        cls.stack = cls.enterClassContext(make(ECHO + models))

    def setUp(self) -> None:
        eventually(lambda: self.stack.get("/readyz").status == 200, "all is well")

    def test_a_worker_starts_without_it_loads_it_for_a_call_and_unloads_it_when_it_is_idle(self) -> None:
        self.assertEqual((self.loads("idle"), self.state_of("idle")), ([], "not loaded"))
        self.hold()
        call = self.stack.submit({"text": "text", "fail": Fail.HELD}, model="idle")
        eventually(lambda: self.shown() == "ready", "its page says so")
        self.assertGreater(self.served()["memory_bytes"], 16 * heavy.MIB)
        self.stack.release()
        self.assert_answered([call])
        eventually(lambda: self.state_of("idle") == "not loaded", "it is unloaded")
        eventually(lambda: self.shown() == "not loaded", "its page says so")
        eventually(lambda: (self.served()["workers"], self.stack.get("/readyz").status) == (1, 200), "it is served")
        self.assert_answered([self.stack.submit("text", model="idle")])
        self.assertEqual(self.loads("idle"), ["idle", "idle"])

    def served(self) -> Any:
        return self.stack.get("/v1/models/idle").json["served"]

    def shown(self) -> str:
        [entry] = self.served()["entries"]
        return str(entry["state"])

    def test_one_that_cannot_be_loaded_says_why_and_is_tried_again_after_pauses(self) -> None:
        self.file("broken-broken").touch()
        waiting = [self.stack.submit("text", model="broken")]
        eventually(lambda: self.row().state == WorkerState.DEGRADED, "it has failed")
        why = "broken: could not be loaded on cpu: RuntimeError: no weights yet"
        eventually(lambda: why in self.row().error, "its row says why")
        eventually(lambda: "no weights yet" in str(self.stack.get("/readyz").json), "the service says so")
        eventually(self.is_refused, "nobody serves it before it is tried again")
        self.assert_answered([self.stack.submit("text")])
        eventually(lambda: len(self.loads("broken")) > 1, "it is tried again")
        self.file("broken-broken").unlink()
        self.assert_answered(waiting)
        eventually(lambda: self.stack.get("/readyz").status == 200, "all is well")

    def is_refused(self) -> bool:
        answer = self.stack.post("/v1/models/broken?timeout=0", {"inputs": "text"})
        return (answer.status, answer.json["code"]) == (503, "no_worker")

    def test_a_process_that_is_killed_while_it_loads_one_loads_it_again(self) -> None:
        self.file("held-killed").touch()
        waiting = [self.stack.submit("text", model="killed")]
        eventually(lambda: self.state_of("killed") == "loading", "it is loading")
        os.kill(self.stack.replica_pids()[0], signal.SIGKILL)
        self.file("held-killed").unlink()
        self.assert_answered([self.stack.submit("text"), *waiting])

    def test_a_bad_input_is_isolated_and_its_neighbours_succeed(self) -> None:
        crash = self.stack.submit({"text": "a", "fail": Fail.CRASH}, model="crashing")
        others = [self.stack.submit(f"text {number}", model="crashing") for number in range(7)]
        self.assert_answered(others, attempts=9)
        [job] = self.stack.finished(crash)
        self.assertEqual((job.status, job.error_code), (Status.FAILED, "crashed"))

    def test_what_is_cancelled_or_expires_before_its_load_is_not_run(self) -> None:
        self.file("held-late").touch()
        first, cancelled = (self.stack.submit("text", model="late") for _ in range(2))
        expiring = self.stack.submit("text", model="late", expires_in=1)
        self.stack.post(f"/v1/jobs/{cancelled}/cancel", {})
        self.stack.finished(expiring)
        self.file("held-late").unlink()
        self.assert_answered([first])
        ended = self.stack.finished(cancelled, expiring)
        self.assertEqual([(job.status, job.attempts) for job in ended], [(Status.CANCELLED, 0), (Status.EXPIRED, 0)])


class RoomTests(LazyCase):
    @classmethod
    def setUpClass(cls) -> None:
        models = ECHO + heavy.tables("late") + heavy.tables("large", megabytes=64)
        cls.stack = cls.enterClassContext(make(models, room_mb=50, replicas=2))

    def test_one_that_is_larger_than_the_room_is_refused_with_the_figures(self) -> None:
        eventually(lambda: "large: it needs 64 MiB, and lazy models have" in self.row().error, "the row says so")
        self.assertEqual(self.stack.call("text", model="large").status, 503)
        self.assert_answered([self.stack.submit("text")])
        self.assertEqual(self.loads("large"), [])

    def test_replicas_load_it_one_after_the_other(self) -> None:
        self.assert_answered([self.stack.submit(f"text {number}", model="late") for number in range(20)])
        eventually(lambda: all("late" in replica.memory for replica in self.row().replicas.values()), "all have it")


class SeveralWorkersTests(LazyCase):
    def test_one_of_them_loads_a_model_for_its_jobs(self) -> None:
        """They know of each other by heartbeats, so that some may have loaded the same at first."""
        self.start(heavy.tables("a", "b", "c"), workers=2)
        self.assert_answered([self.stack.submit("first", model=model) for model in "abc"])
        for model in "abc":
            eventually(lambda: self.having(model), f"its row says who has {model}")  # noqa: B023
        loads = self.loads()
        self.assertEqual(set(loads), {"a", "b", "c"})
        self.assert_answered([self.stack.submit("second", model=model) for model in "abc" * 4])
        self.assertEqual(self.loads(), loads)

    def having(self, model: str) -> list[Worker]:
        """Return the workers whose rows say that they have it in memory."""
        return [
            row
            for row in self.stack.workers.all()
            for entry in row.catalog.models
            if (entry.name, entry.state) == (model, ModelState.READY)
        ]

    def test_another_loads_it_when_the_one_that_had_it_is_gone(self) -> None:
        self.start(heavy.tables("a"))
        self.assert_answered([self.stack.submit("first", model="a")])
        self.stack.start_worker("worker2")
        self.stack.ready()
        self.stack.children["worker1"].kill()
        self.assert_answered([self.stack.submit("second", model="a")])
        self.assertEqual(self.loads(), ["a", "a"])
