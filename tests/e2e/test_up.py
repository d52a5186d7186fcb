"""`manage.py up`: serves, shows a real answer, says what is wrong, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self
from unittest import TestCase

from django.conf import settings
from django.test import tag

from tests import databases, processes
from tests.conditions import PATIENCE_S, eventually
from tests.ports import HOST, free_port
from tests.second_look import TAG


class Up:
    """`manage.py up` in a process of its own, with a broker socket of its own, and so is its folder unless given."""

    def __init__(
        self,
        port: int,
        models_file: Path = settings.BASE_DIR / "models.toml",
        data: Path | None = None,
        more: Mapping[str, str] | None = None,  # of the environment
        *,
        is_new: bool = False,  # whether it finds no database yet, which takes it a second to make
    ) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="up-")
        environment = {name: value for name, value in os.environ.items() if name not in ("REDIS_URL", "BROKER_URL")}
        self.data = str(data or self.folder.name)
        if not is_new:
            databases.prepare(Path(self.data, "db.sqlite3"))
        own = {"DATA_DIR": self.data, "TMPDIR": self.folder.name, "DEVELOPMENT": "1", "PORT": str(port)}
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "up"],
            env={**environment, **own, "MODELS_FILE": str(models_file), "OMP_NUM_THREADS": "1", **(more or {})},
            cwd=settings.BASE_DIR,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout
        self.stdout = self.process.stdout
        self.output, self.listening = "", True
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        for line in self.stdout:
            self.output += line
            if not self.listening:
                break

    def stop_reading(self) -> None:
        self.listening = False
        self.reader.join()
        self.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        eventually(lambda: not self.descendants(), "nothing is left behind")
        self.reader.join()
        self.stdout.close()
        self.folder.cleanup()

    def shows(self, text: str) -> None:
        def shown() -> bool:
            if text not in self.output and self.process.poll() is not None:
                raise AssertionError(f"ended without {text!r}:\n{self.output}")
            return text in self.output

        eventually(shown, f"the output shows {text!r}")

    def descendants(self) -> list[int]:
        """What it started, also what has lost its parent."""
        return [pid for pid in processes.of_data_folder(self.data) if pid != self.process.pid]


@contextlib.contextmanager
def impatient_client(port: int) -> Iterator[None]:
    """Asks again and again, also while there is no worker yet."""
    ended = threading.Event()

    def send_requests() -> None:
        request = urllib.request.Request(f"http://{HOST}:{port}/v1/models/embeddings", b'{"inputs": "now?"}')
        request.add_header("Content-Type", "application/json")
        while not ended.wait(0.2):  # between two requests: it takes the core that loads the models
            with contextlib.suppress(OSError, http.client.HTTPException):
                urllib.request.urlopen(request, timeout=PATIENCE_S).close()

    thread = threading.Thread(target=send_requests)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@tag(TAG)
class TestUp(TestCase):
    def echo(self) -> Path:
        """A models.toml whose model is loaded at once."""
        file = Path(self.enterContext(tempfile.TemporaryDirectory()), "models.toml")
        file.write_text('[echo]\nengine = "tests.echo:EchoEngine"\n')
        return file

    def test_it_serves_shows_a_real_answer_and_stops_cleanly(self) -> None:
        with Up(port := free_port(), is_new=True) as up, impatient_client(port):
            up.shows(f"Ready on http://{HOST}:{port}, serving embeddings")
            up.shows("A request, and the answer it got")
            up.shows(f"curl http://{HOST}:{port}/v1/models/embeddings")
            up.shows('"... 381 more"]')
            up.shows(f"http://{HOST}:{port}/v1/docs")
            up.shows(f"Its models are those of {settings.BASE_DIR / 'models.toml'}")
            up.shows("Ctrl-C stops everything")
            up.process.send_signal(signal.SIGINT)
            self.assertEqual(up.process.wait(PATIENCE_S), 0)
            self.assertEqual(up.descendants(), [])
        stops = [up.output.index(f"stopping {name}") for name in ("web", "worker", "broker")]
        self.assertEqual(stops, sorted(stops))

    def test_a_part_that_dies_starts_again_and_nothing_is_left_when_the_supervisor_is_killed(self) -> None:
        with Up(free_port(), self.echo()) as up:
            up.shows("Ready on")
            [broker, *_] = [pid for pid in up.descendants() if "broker.sock" in processes.command(pid)]
            os.kill(broker, signal.SIGKILL)
            up.shows("broker was killed by SIGKILL; it starts again in 1 s")
            self.assertTrue(up.descendants())
            up.process.kill()

    def test_it_stops_when_nobody_reads_its_output_any_more(self) -> None:
        with Up(free_port(), self.echo()) as up:
            up.shows("worker | ")  # it says more: that it is connected, and how loading went
            up.stop_reading()
            self.assertEqual(up.process.wait(PATIENCE_S), 0)
            self.assertEqual(up.descendants(), [])

    def test_a_broker_that_is_not_where_redis_url_says_is_reported(self) -> None:
        nobody = free_port()
        with Up(free_port(), self.echo(), more={"REDIS_URL": f"redis://:secret@{HOST}:{nobody}/0"}) as up:
            up.shows("REDIS_URL says where it is")
            [said, *_] = [line for line in up.output.splitlines() if "REDIS_URL says where it is" in line]
            self.assertIn("waiting for the worker", said)
            self.assertIn(f"{HOST}:{nobody}", said)
            self.assertNotIn("secret", up.output)

    def test_a_taken_port_is_named_with_the_way_out(self) -> None:
        with socket.create_server((HOST, 0)) as taken, Up(taken.getsockname()[1]) as up:
            self.assertEqual(up.process.wait(PATIENCE_S), 1)
            up.reader.join()
            self.assertIn(f"Something listens on {HOST} port {taken.getsockname()[1]} already", up.output)
            self.assertIn("make run PORT=", up.output)
