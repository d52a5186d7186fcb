"""A Celery application of one task, for `celery -A tests.inference.broker.tiny_app worker`.

A task notes its number as begun, waits for the gate to open, and notes it as done. The worker notes it as accepted once
it knows that a child has begun it.
"""

import os
from pathlib import Path
from typing import Any

from celery import Celery, Task
from celery.worker.request import Request
from kombu import Exchange, Queue

from inference.broker import address
from tests.conditions import PATIENCE_S, wait_for

QUEUE = "inference.tiny"
URL = os.environ.get("TINY_BROKER_URL", "memory://")
FOLDER = Path(os.environ.get("TINY_FOLDER", "."))

app = Celery("tiny", broker=URL, set_as_current=False)
app.conf.update(
    broker_transport_options=address.make_kombu_options(URL),
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    task_ignore_result=True,
    task_queues=[Queue(QUEUE, Exchange("inference"), routing_key=QUEUE)],
    worker_prefetch_multiplier=6,
)


class NotedRequest(Request):  # type: ignore[misc]  # without types
    def on_accepted(self, pid: int, time_accepted: float) -> None:
        super().on_accepted(pid, time_accepted)
        (FOLDER / f"accepted-{self.id}").touch()


class NotedTask(Task[Any, Any]):
    Request = f"{__name__}:NotedRequest"


@app.task(name="tiny.note", base=NotedTask)
def note(number: int) -> None:
    (FOLDER / f"begun-{number}").touch()
    wait_for((FOLDER / "gate").exists, limit_s=PATIENCE_S, every_s=0.01)
    (FOLDER / f"done-{number}").touch()
