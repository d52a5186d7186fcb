"""Celery's own tools with a worker that batches: what they show, do, and refuse; and Flower."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from typing import Any
from unittest import TestCase

from django.conf import settings

from inference.models import Status, WorkerState
from tests.conditions import eventually
from tests.e2e.case import ShowingLog, StackCase
from tests.ports import HOST, free_port
from tests.stack import Stack

ONE_AT_A_TIME = '[echo]\nengine = "tests.echo:EchoEngine"\nmax_batch_size = 1\ntime_limit_s = 60\n'


def celery(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "celery", "-A", "project", *arguments], env={**os.environ, **stack.environment},
        cwd=settings.BASE_DIR, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def slow(seconds: float) -> dict[str, Any]:
    return {"text": "", "fail": "hang-sleep", "seconds": seconds}


class TestInspect(StackCase):
    options = {"replicas": 1, "models": ONE_AT_A_TIME, "worker_options": ("-E",)}

    def ask(self, *arguments: str) -> Any:
        """The answer of the one worker."""
        run = celery(self.stack, *arguments, "--json", "--timeout", "10", "-d", self.stack.workers.get().name)
        found = json.loads(run.stdout)
        [answer] = (found[0] if isinstance(found, list) else found).values()
        return answer

    def test_what_runs_and_what_waits_is_shown(self) -> None:
        running = self.stack.submit(slow(50))
        eventually(lambda: self.stack.jobs.get(pk=running).status == Status.RUNNING, "it runs")
        waiting = self.stack.submit("a")
        self.assertIn("1 node online", celery(self.stack, "status").stdout)
        self.assertEqual(self.ask("inspect", "ping"), {"ok": "pong"})
        self.assertEqual(self.ask("inspect", "registered"), ["inference.run"])
        self.assertEqual([queue["name"] for queue in self.ask("inspect", "active_queues")], ["inference.echo"])
        self.assertEqual([task["id"] for task in self.ask("inspect", "active")], [str(running)])
        self.assertIn(str(waiting), [task["id"] for task in self.ask("inspect", "reserved")])
        stats = self.ask("inspect", "stats")
        self.assertEqual(stats["pool"]["processes"], self.stack.replica_pids())
        self.assertGreaterEqual(stats["total"]["inference.run"], 1)

        self.assertIn("ok", self.ask("control", "revoke", str(running), str(waiting), "no-job"))
        ended = self.stack.finished(running, waiting)
        self.assertEqual([job.status for job in ended], [Status.CANCELLED, Status.CANCELLED])

    def test_what_would_break_batching_or_change_nothing_says_what_does(self) -> None:
        for command, instead in (
            (("pool_grow",), "-c N"), (("pool_shrink",), "-c N"), (("rate_limit", "x", "1/m"), "max_queued"),
            (("time_limit", "inference.run", "1"), "time_limit_s"), (("cancel_consumer", "inference.echo"), "admin"),
        ):  # fmt: skip
            self.assertIn(instead, self.ask("control", *command)["error"])
        self.assertEqual(self.stack.finished(self.stack.submit("a"))[0].status, Status.SUCCEEDED)


class TestShutdown(ShowingLog):
    def test_a_worker_that_is_asked_to_stop_ends_what_runs_and_gives_the_rest_back(self) -> None:
        with Stack(replicas=1, models=ONE_AT_A_TIME) as self.stack:
            running = self.stack.submit(slow(3))
            eventually(lambda: self.stack.jobs.get(pk=running).status == Status.RUNNING, "it runs")
            waiting = [self.stack.submit(f"{number}") for number in range(5)]
            celery(self.stack, "control", "shutdown")
            eventually(lambda: self.stack.children["worker1"].exit_code == 0, "the worker ends")
            self.assertEqual(self.stack.workers.get().state, WorkerState.STOPPED)
            self.stack.start_worker()
            for job in self.stack.finished(running, *waiting):
                self.assertEqual((job.status, job.attempts, job.recoveries), (Status.SUCCEEDED, 1, 0))


class TestFlower(TestCase):
    def test_it_sees_the_worker_and_its_tasks(self) -> None:
        with Stack(replicas=1, worker_options=("-E",)) as stack:
            port = free_port()
            own = {"BROKER_URL": f"redis+socket://{stack.socket}", "PYTHONPATH": f"{sys.prefix}/flower"}
            environment = {**os.environ, **stack.environment, **own}
            flower = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "project", "flower", "--address=127.0.0.1", f"--port={port}"],
                env={**environment, "FLOWER_UNAUTHENTICATED_API": "1"}, cwd=settings.BASE_DIR,
                stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                [name] = eventually(lambda: self.shown(port, "workers?refresh=1"), "the worker is shown")
                self.assertTrue(name.startswith("worker1@"))
                good, bad = stack.submit("a"), stack.submit({"text": "", "fail": "exception"})
                stack.finished(good, bad)
                wanted = {str(good): "SUCCESS", str(bad): "FAILURE"}

                def states() -> dict[str, str]:
                    return {job: task["state"] for job, task in self.shown(port, "tasks").items() if job in wanted}

                eventually(lambda: states() == wanted, "both tasks are shown as they ended")
            finally:
                flower.kill()
                flower.wait()

    def shown(self, port: int, what: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/api/{what}", timeout=10) as answer:
                return dict(json.load(answer))
        except OSError:
            return {}
