"""Celery's own tools with a worker that batches: what they show, do, and refuse; and Flower."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from typing import Any
from uuid import UUID

from celery import Celery
from django.conf import settings

from inference.broker.address import make_kombu_url
from inference.models import Status, Worker, WorkerState
from tests.conditions import PATIENCE_S, eventually
from tests.e2e.case import StackCase
from tests.echo import Fail
from tests.ports import HOST, free_port

ONE_AT_A_TIME = '[echo]\nengine = "tests.echo:EchoEngine"\nmax_batch_size = 1\ntime_limit_s = 180\n'
HELD = {"text": "", "fail": Fail.HELD}


class CeleryTests(StackCase):
    options = {"replicas": 1, "models": ONE_AT_A_TIME, "worker_options": ("-E",)}

    def celery(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "celery", "-A", "project", *arguments],
            env={**os.environ, **self.stack.environment},
            cwd=settings.BASE_DIR,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def send_from_command_line(self, *arguments: str) -> Any:
        """Return the answer of the one worker to the command line."""
        run = self.celery(*arguments, "--json", "--timeout", f"{PATIENCE_S:g}", "-d", self.worker().name)
        found = json.loads(run.stdout)
        [answer] = (found[0] if isinstance(found, list) else found).values()
        return answer

    def broadcast(self, command: str, **arguments: Any) -> Any:
        """Return the answer of the one worker to what the command line sends."""
        broker = Celery(broker=make_kombu_url(self.stack.environment["REDIS_URL"]))
        broker.conf.broker_transport_options = settings.CELERY_BROKER_TRANSPORT_OPTIONS
        self.addCleanup(broker.close)
        name = self.worker().name
        answers: Any = broker.control.broadcast(
            command, arguments=arguments, destination=[name], reply=True, timeout=PATIENCE_S, limit=1
        )
        return answers[0][name]

    def worker(self) -> Worker:
        return self.stack.workers.get(pid=self.stack.children["worker1"].pid)

    def held(self) -> UUID:
        """Return a job that runs until the test releases it."""
        self.hold()
        job = self.stack.submit(HELD)
        eventually(lambda: self.is_running(job), "it runs")
        return job

    def test_what_runs_and_what_waits_is_shown(self) -> None:
        running = self.held()
        waiting = self.stack.submit("a")
        self.assertIn("1 node online", self.celery("status").stdout)
        self.assertEqual(self.broadcast("ping"), {"ok": "pong"})
        self.assertEqual(self.broadcast("registered"), ["inference.run"])
        self.assertEqual([queue["name"] for queue in self.broadcast("active_queues")], ["inference.echo"])
        eventually(lambda: str(waiting) in [task["id"] for task in self.broadcast("reserved")], "it is held")
        self.assertEqual([task["id"] for task in self.send_from_command_line("inspect", "active")], [str(running)])
        stats = self.broadcast("stats")
        self.assertEqual(stats["pool"]["processes"], self.stack.replica_pids())
        self.assertGreaterEqual(stats["total"]["inference.run"], 1)

        self.assertIn("ok", self.send_from_command_line("control", "revoke", str(running), str(waiting), "no-job"))
        ended = self.stack.finished(running, waiting)
        self.assertEqual([job.status for job in ended], [Status.CANCELLED, Status.CANCELLED])

    def test_what_would_break_batching_or_change_nothing_says_what_does(self) -> None:
        self.assertIn("-c N", self.send_from_command_line("control", "pool_grow")["error"])
        for command, arguments, instead in (
            ("pool_shrink", {"n": 1}, "-c N"), ("rate_limit", {"task_name": "x", "rate_limit": "1/m"}, "max_queued"),
            ("time_limit", {"task_name": "inference.run", "soft": 1, "hard": None}, "time_limit_s"),
            ("cancel_consumer", {"queue": "inference.echo"}, "admin"),
        ):  # fmt: skip
            self.assertIn(instead, self.broadcast(command, **arguments)["error"])
        self.assertEqual(self.stack.finished(self.stack.submit("a"))[0].status, Status.SUCCEEDED)

    def test_a_worker_that_receives_a_shutdown_ends_what_runs_and_gives_the_rest_back(self) -> None:
        running, worker = self.held(), self.worker()
        waiting = [self.stack.submit(f"{number}") for number in range(5)]
        self.celery("control", "shutdown")
        self.log_shows("Got shutdown from remote", "it is told to stop")
        self.stack.release()
        eventually(lambda: self.stack.children["worker1"].exit_code == 0, "the worker ends")
        self.assertEqual(self.stack.workers.get(pk=worker.pk).state, WorkerState.STOPPED)
        self.assertEqual(self.stack.jobs.filter(pk__in=waiting, status=Status.QUEUED).count(), len(waiting))
        self.stack.start_worker()
        self.stack.ready()
        for job in self.stack.finished(running, *waiting):
            self.assertEqual((job.status, job.attempts, job.recoveries), (Status.SUCCEEDED, 1, 0))

    def test_a_cold_shutdown_ends_what_runs_and_another_worker_runs_it_again(self) -> None:
        running = self.held()
        worker = self.stack.children["worker1"]
        os.kill(worker.pid, signal.SIGTERM)
        self.log_shows("Warm shutdown", "it waits for what runs")
        os.kill(worker.pid, signal.SIGQUIT)
        eventually(lambda: worker.exit_code is not None, "the worker ends")
        self.assertFalse(any("Traceback" in line for line in self.stack.log))
        self.stack.release()
        self.stack.start_worker()
        self.assertEqual(self.stack.finished(running)[0].status, Status.SUCCEEDED)

    def test_flower_sees_the_worker_and_its_tasks(self) -> None:
        port = free_port()
        own = {"BROKER_URL": f"redis+socket://{self.stack.socket}", "PYTHONPATH": f"{sys.prefix}/flower"}
        flower = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "project", "flower", "--address=127.0.0.1", f"--port={port}"],
            env={**os.environ, **self.stack.environment, **own, "FLOWER_UNAUTHENTICATED_API": "1"},
            cwd=settings.BASE_DIR,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
        try:
            eventually(lambda: self.worker().name in self.shown(port, "workers?refresh=1"), "the worker is shown")
            good, bad = self.stack.submit("a"), self.stack.submit({"text": "", "fail": "exception"})
            self.stack.finished(good, bad)
            wanted = {str(good): "SUCCESS", str(bad): "FAILURE"}

            def states() -> dict[str, str]:
                return {job: task["state"] for job, task in self.shown(port, "tasks").items() if job in wanted}

            eventually(lambda: states() == wanted, "both tasks are shown as they ended")
        finally:
            flower.kill()
            flower.wait()

    def shown(self, port: int, what: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/api/{what}", timeout=PATIENCE_S) as answer:
                return dict(json.load(answer))
        except OSError:
            return {}
