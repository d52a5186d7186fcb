"""What a message costs between the web process and the worker: Celery and kombu as they come, against ours.

python -m benchmarks.transport [--messages 3000] [--rounds 5]

CPU of this process and of the server, in turn, medians over the rounds. A private broker is started and stopped.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import kombu
import redis
from celery import Celery
from kombu.asynchronous import Hub

from inference.broker import address
from inference.broker.messages import TASK, JobMessage
from tests.embedded_broker import EmbeddedBroker

QUEUE = "inference.benchmark"
PREFETCH = 128  # two batches of 32 for each of two replicas
BATCH = 32  # acknowledged together

Costs = tuple[float, float]  # ms of CPU a message: this process, the server


def job_message() -> JobMessage:
    return JobMessage(
        job_id=str(uuid4()),
        model="benchmark",
        queue=QUEUE,
        group="a1b2c3d4",
        size=1,
        length=17,
        priority=2,
        created_at=time.time(),
        expires_at=None,
    )


@contextmanager
def private_broker() -> Iterator[EmbeddedBroker]:
    with tempfile.TemporaryDirectory(dir=address.find_temporary_folder()) as folder:
        broker = EmbeddedBroker(Path(folder) / "data", Path(folder) / "broker.sock")
        broker.start()
        try:
            yield broker
        finally:
            broker.stop()


class Bench:
    def __init__(self, broker: EmbeddedBroker, messages: int) -> None:
        self.url, self.messages = broker.url, messages
        self.client = redis.Redis.from_url(broker.url)

    def server_cpu_s(self) -> float:
        facts = self.client.info("cpu")
        return float(facts["used_cpu_user"] + facts["used_cpu_sys"])

    def cost(self, work: Callable[[], None]) -> Costs:
        own, server = time.process_time(), self.server_cpu_s()
        work()
        spent = time.process_time() - own, self.server_cpu_s() - server
        return spent[0] * 1000 / self.messages, spent[1] * 1000 / self.messages

    def send_with_celery(self) -> None:
        url = address.make_stock_kombu_url(self.url)
        with Celery("benchmark", broker=url, set_as_current=False) as app:
            app.conf.broker_transport_options = address.make_kombu_options(url)
            for _ in range(self.messages):
                message = job_message()
                app.send_task(
                    TASK,
                    [message.job_id],
                    message.hints,
                    task_id=message.job_id,
                    queue=QUEUE,
                    priority=2,
                    ignore_result=True,
                )

    def send(self, at_once: int) -> None:
        from inference.broker import publisher

        for _ in range(self.messages // at_once):
            publisher.publish_messages([job_message() for _ in range(at_once)])

    def consume(self, url: str) -> None:
        """As a worker does: in an event loop, prefetched, acknowledged batch by batch."""
        connection = kombu.Connection(url, transport_options=address.make_kombu_options(url))
        hub = Hub()
        connection.transport.register_with_event_loop(connection.connection, hub)
        waiting: list[kombu.Message] = []
        left = self.messages

        def receive(message: kombu.Message) -> None:
            nonlocal left
            waiting.append(message)
            left -= 1
            if len(waiting) == BATCH or not left:
                for one in waiting:
                    one.ack()
                waiting.clear()

        with kombu.Consumer(
            connection.channel(), [kombu.Queue(QUEUE)], on_message=receive, accept=["json"]
        ) as consumer:
            consumer.qos(prefetch_count=PREFETCH)
            loop = hub.create_loop()
            while left or self.client.hlen("unacked"):
                next(loop)
        connection.close()
        hub.close()

    def cases(self) -> dict[str, Callable[[], None]]:
        """In this order: each consumer finds what was just sent."""
        return {
            "send, Celery": self.send_with_celery,
            "receive and acknowledge, kombu": lambda: self.consume(address.make_stock_kombu_url(self.url)),
            "send, ours, one at a time": lambda: self.send(1),
            "receive and acknowledge, ours": lambda: self.consume(address.make_kombu_url(self.url)),
            "send, ours, 50 at a time": lambda: self.send(50),
            "(the same again)": lambda: self.consume(address.make_kombu_url(self.url)),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=3000, help="a round, a multiple of 50")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with private_broker() as broker:
        os.environ["REDIS_URL"] = broker.url
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
        bench = Bench(broker, options.messages)
        costs: dict[str, list[Costs]] = {name: [] for name in bench.cases()}
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", flush=True)
            for name, work in bench.cases().items():
                costs[name].append(bench.cost(work))
        report(costs)


def report(costs: dict[str, list[Costs]]) -> None:
    print(f"\n{'ms of CPU a message':32} {'this process':>14} {'the server':>12}")
    for name, rounds in costs.items():
        own, server = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"{name:32} {own:14.3f} {server:12.3f}")


if __name__ == "__main__":
    main()
