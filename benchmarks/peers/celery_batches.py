"""celery-batches, with results: https://celery-batches.readthedocs.io/en/latest/examples.html.

The web side is what a Django or Flask team writes: `delay(...).get()` in a threaded server.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.signals import worker_process_init
from celery_batches import Batches, SimpleRequest
from flask import Flask, Response, jsonify
from flask import request as http

from benchmarks.pipeline import WINDOW_S, Pipeline, Setting

setting = Setting.from_environment()
redis_url = f"redis://127.0.0.1:{setting.broker_port}/0"
app = Celery("peer", broker=redis_url, backend=redis_url)
app.conf.worker_prefetch_multiplier = 2 * setting.max_batch_size  # must exceed flush_every, says its documentation
app.conf.result_expires = 60
pipelines: list[Pipeline] = []


@worker_process_init.connect
def load(**kwargs: Any) -> None:
    pipelines.append(Pipeline(setting))


@app.task(base=Batches, flush_every=setting.max_batch_size, flush_interval=WINDOW_S)
def predict(requests: list[SimpleRequest]) -> None:
    outputs = pipelines[0]([request.args[0] for request in requests])
    for request, output in zip(requests, outputs, strict=True):
        app.backend.mark_as_done(request.id, output, request=request)


web = Flask(__name__)


@web.post("/")
def answer() -> Response:
    return jsonify(predict.delay(http.get_json()["inputs"]).get(timeout=60))
