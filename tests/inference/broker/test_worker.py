"""A real Celery worker on either transport: how it leaves, what it survives."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import TestCase

from celery import Celery
from django.test import tag

from inference.broker import address
from tests.conditions import PATIENCE_S, eventually
from tests.inference.broker.servers import client_of, own_broker, wait_for_its_log
from tests.inference.broker.test_transport import NO_MESSAGES, envelope
from tests.inference.broker.tiny_app import QUEUE
from tests.second_look import TAG

ROOT = Path(__file__).resolve().parents[3]
COMMAND = (
    sys.executable, "-m", "celery", "-A", "tests.inference.broker.tiny_app", "worker", "-c", "1", "-l", "INFO",
    "--without-mingle", "--without-gossip",
)  # fmt: skip


@tag(TAG)
class OnOwnBroker(TestCase):
    @staticmethod
    def kombu_url(redis_url: str) -> str:
        return address.make_kombu_url(redis_url)

    def setUp(self) -> None:
        self.broker = own_broker(self)
        self.client = client_of(self, self.broker.url)
        self.url = self.kombu_url(self.broker.url)
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def start(self) -> subprocess.Popen[bytes]:
        self.log = self.folder / "log"
        environment = {**os.environ, "TINY_BROKER_URL": self.url, "TINY_FOLDER": str(self.folder)}
        environment.pop("DJANGO_SETTINGS_MODULE", None)  # Celery would load the project's tasks
        with open(self.log, "w") as log:
            worker = subprocess.Popen(
                COMMAND, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self.addCleanup(worker.wait)
        self.addCleanup(kill_group, worker.pid)
        eventually(lambda: " ready." in self.said(), "the worker is ready")
        return worker

    def said(self) -> str:
        return self.log.read_text()

    def wait_until_done(self, number: int) -> None:
        eventually(lambda: number in self.noted("done"), f"{number} is done")

    def send(self, *numbers: int) -> None:
        with Celery("sender", broker=self.url, set_as_current=False) as app:
            app.conf.broker_transport_options = address.make_kombu_options(self.url)
            for number in numbers:
                app.send_task("tiny.note", [number], task_id=str(number), queue=QUEUE, priority=2, ignore_result=True)

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    def noted(self, what: str) -> list[int]:
        return sorted(int(path.name.partition("-")[2]) for path in self.folder.glob(f"{what}-*"))

    def back_in_line(self) -> list[int]:
        texts = self.client.lrange(address.make_queue_key(QUEUE, 2), 0, -1)
        return [int(json.loads(text)["headers"]["id"]) for text in reversed(texts)]

    def prefetched(self) -> int:
        return self.client.hlen("unacked")


class StockWorkerTests(OnOwnBroker):
    """What both transports do."""

    @staticmethod
    def kombu_url(redis_url: str) -> str:
        return address.make_stock_kombu_url(redis_url)

    def assert_order(self, numbers: list[int], wanted: list[int]) -> None:
        """kombu's own transport puts them back in reverse."""
        self.assertEqual(sorted(numbers), wanted)

    def begin_and_signal(self, number: signal.Signals) -> subprocess.Popen[bytes]:
        worker = self.start()
        self.send(*range(10))
        eventually(lambda: self.noted("accepted") == [0], "the worker knows that one runs")
        eventually(lambda: self.prefetched() == 6, "others are prefetched")
        worker.send_signal(number)
        return worker

    def leaves_warmly(self, number: signal.Signals, exit_code: int) -> None:
        worker = self.begin_and_signal(number)
        eventually(lambda: "Warm shutdown" in self.said(), "the worker is leaving")
        self.open_gate()
        self.assertEqual(worker.wait(PATIENCE_S), exit_code)
        self.assertEqual(self.noted("done"), [0])
        self.assertEqual(self.prefetched(), 0)
        self.assert_order(self.back_in_line(), list(range(1, 10)))

    def test_sigterm_ends_what_runs_and_puts_the_rest_back(self) -> None:
        self.leaves_warmly(signal.SIGTERM, exit_code=0)


class WorkerTests(StockWorkerTests):
    """On our transport."""

    @staticmethod
    def kombu_url(redis_url: str) -> str:
        return address.make_kombu_url(redis_url)

    def assert_order(self, numbers: list[int], wanted: list[int]) -> None:
        self.assertEqual(numbers, wanted)

    def test_sigint_ends_what_runs_and_puts_the_rest_back(self) -> None:
        self.leaves_warmly(signal.SIGINT, exit_code=1)  # Celery's choice

    def test_sigquit_stops_what_runs_and_loses_nothing(self) -> None:
        worker = self.begin_and_signal(signal.SIGQUIT)
        self.assertEqual(worker.wait(PATIENCE_S), 0)
        self.assertEqual(self.prefetched(), 0)
        self.assertEqual(sorted(self.back_in_line()), list(range(10)))

    def test_an_idle_worker_leaves_at_once(self) -> None:
        worker = self.start()
        worker.terminate()
        self.assertEqual(worker.wait(PATIENCE_S), 0)

    def test_it_answers_remote_control(self) -> None:
        self.start()
        with Celery("sender", broker=self.url, set_as_current=False) as app:
            app.conf.broker_transport_options = address.make_kombu_options(self.url)
            [answer] = app.control.ping(timeout=PATIENCE_S, limit=1) or []
        self.assertEqual(list(answer.values()), [{"ok": "pong"}])
        eventually(lambda: self.prefetched() == 0, "nothing is left")

    def test_it_goes_on_when_the_broker_was_killed_and_restarted(self) -> None:
        self.start()
        self.open_gate()
        self.send(1)
        eventually(lambda: self.noted("done") == [1] and self.prefetched() == 0, "the first is done")
        wait_for_its_log(self.client)
        self.broker.kill()
        eventually(lambda: "connection to broker lost" in self.said().lower(), "the worker has noticed")
        self.broker.start()
        self.send(2)
        eventually(lambda: self.noted("done") == [1, 2], "the second is done")
        eventually(lambda: self.prefetched() == 0, "nothing is left")

    def test_it_goes_on_when_its_connections_are_cut(self) -> None:
        self.start()
        self.open_gate()
        for number in range(3):
            self.client.client_kill_filter(_type="normal", skipme=True)
            self.send(number)
            self.wait_until_done(number)
        eventually(lambda: self.prefetched() == 0, "nothing is left")


class NoMessageTests(OnOwnBroker):
    """What ends a worker on kombu's own transport (celery#4308)."""

    def test_the_worker_survives_all_of_it(self) -> None:
        worker = self.start()
        self.open_gate()
        strange = [*NO_MESSAGES.values(), *map(json.dumps, self.for_celery())]
        for number, text in enumerate(strange):
            self.client.lpush(QUEUE, text)
            self.send(number)
        eventually(lambda: self.noted("done") == list(range(len(strange))), "all messages in between are done")
        eventually(lambda: not self.client.exists("unacked", QUEUE), "nothing is left")
        self.assertIsNone(worker.poll())
        self.assertNotIn("connection to broker lost", self.said().lower())

    def for_celery(self) -> list[dict[str, Any]]:
        """Well-formed for the transport, and nothing that Celery can run."""
        headers = {"task": "tiny.note", "id": "x"}
        return [
            envelope(headers={"task": "no.such.task", "id": "x"}),
            envelope(headers=headers, body="AAAA"),
            envelope(headers=headers, **{"content-type": "application/x-python-serialize"}),
            envelope(headers={**headers, "compression": "bzip2"}),
            envelope(headers={**headers, "compression": "no-such"}),
            envelope(headers={**headers, "eta": "tomorrow"}),
            envelope(headers={**headers, "expires": []}),
            envelope(headers={**headers, "retries": "many", "timelimit": 7}),
            envelope(body="eyJ0YXNrIjogW119"),  # {"task": []}, protocol 1
            envelope(body="W10="),  # []
        ]


def kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
