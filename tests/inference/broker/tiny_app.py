"""A Celery application of one task, for `celery -A tests.inference.broker.tiny_app worker`.

A task notes its number as begun, waits for the gate to open, and notes it as done.
"""

import os
import time
from pathlib import Path

from celery import Celery
from kombu import Exchange, Queue

from inference.broker import address

QUEUE = "inference.tiny"
URL = os.environ.get("TINY_BROKER_URL", "memory://")
FOLDER = Path(os.environ.get("TINY_FOLDER", "."))

app = Celery("tiny", broker=URL, set_as_current=False)
app.conf.update(
    broker_transport_options=address.kombu_options(URL),
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    task_ignore_result=True,
    task_queues=[Queue(QUEUE, Exchange("inference"), routing_key=QUEUE)],
    worker_prefetch_multiplier=6,
)


@app.task(name="tiny.note")
def note(number: int) -> None:
    (FOLDER / f"begun-{number}").touch()
    deadline = time.monotonic() + 30
    while not (FOLDER / "gate").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    (FOLDER / f"done-{number}").touch()
