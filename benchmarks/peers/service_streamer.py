"""service-streamer: https://github.com/ShannonAI/service-streamer, each of its ways to serve, behind Flask.

`python -m` this file runs the workers of its RedisStreamer; gunicorn serves `web("redis")`, or another of `WAYS`.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from flask import Flask, Response, jsonify, request
from service_streamer import ManagedModel, RedisStreamer, Streamer, ThreadedStreamer, run_redis_workers_forever

from benchmarks.pipeline import WINDOW_S, Pipeline, Setting

Predict = Callable[[list[str]], list[Any]]


class Model(ManagedModel):
    def init_model(self) -> None:
        self.pipeline = Pipeline(Setting.from_environment())

    def predict(self, batch: list[str]) -> list[Any]:
        return self.pipeline(batch)


def broker(setting: Setting) -> str:
    return f"127.0.0.1:{setting.broker_port}"


def naive(setting: Setting) -> Predict:
    """What it is compared with: each request runs the model in its own thread."""
    return Pipeline(setting)


def threads(setting: Setting) -> Predict:
    return ThreadedStreamer(Pipeline(setting), setting.max_batch_size, WINDOW_S).predict  # type: ignore[no-any-return]


def processes(setting: Setting) -> Predict:
    multiprocessing.set_start_method("spawn", force=True)
    streamer = Streamer(Model, setting.max_batch_size, WINDOW_S, worker_num=setting.workers)
    return streamer.predict  # type: ignore[no-any-return]


def redis(setting: Setting) -> Predict:
    return RedisStreamer(redis_broker=broker(setting)).predict  # type: ignore[no-any-return]


WAYS = {"naive": naive, "threads": threads, "processes": processes, "redis": redis}


def web(way: str) -> Flask:
    app = Flask(__name__)
    predict = WAYS[way](Setting.from_environment())

    @app.post("/")
    def answer() -> Response:
        return jsonify(predict([request.get_json()["inputs"]])[0])

    return app


if __name__ == "__main__":
    setting = Setting.from_environment()
    run_redis_workers_forever(
        Model, setting.max_batch_size, WINDOW_S, worker_num=setting.workers, redis_broker=broker(setting)
    )
