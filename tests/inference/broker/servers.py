"""A broker of a test's own, that it may stop, stall and kill; the broker of the test run serves all others."""

import shutil
import signal
import tempfile
from pathlib import Path
from unittest import TestCase

import redis

from inference.broker import address
from tests.conditions import eventually
from tests.embedded_broker import EmbeddedBroker
from tests.ports import free_port


class TcpBroker(EmbeddedBroker):
    """Answers on a port of the loopback as well."""

    port: int | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        super().start()
        self.port = self.port or free_port()
        with redis.Redis.from_url(super().url) as client:
            client.config_set("bind", "127.0.0.1")
            client.config_set("port", self.port)


def own_broker(test: TestCase, kind: type[EmbeddedBroker] = EmbeddedBroker) -> EmbeddedBroker:
    folder = Path(tempfile.mkdtemp(dir=address.find_temporary_folder()))
    test.addCleanup(shutil.rmtree, folder)
    broker = kind(folder / "data", folder / "broker.sock")
    broker.start()
    test.addCleanup(broker.kill)
    return broker


def client_of(test: TestCase, url: str) -> redis.Redis:
    client = redis.Redis.from_url(url)
    test.addCleanup(client.close)
    return client


def wait_for_its_log(client: redis.Redis) -> None:
    """Wait until the server has written what it was told to its log: a server that is killed loses the rest."""
    eventually(lambda: client.info("persistence")["aof_buffer_length"] == 0, "the server has written its log")


def stall(test: TestCase, broker: EmbeddedBroker) -> None:
    assert broker.process
    broker.process.send_signal(signal.SIGSTOP)
    test.addCleanup(resume, broker)


def resume(broker: EmbeddedBroker) -> None:
    assert broker.process
    broker.process.send_signal(signal.SIGCONT)
