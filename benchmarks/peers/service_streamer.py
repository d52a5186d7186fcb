"""service-streamer's RedisStreamer: https://github.com/ShannonAI/service-streamer#distributed-web-server.

`python -m` this file runs the workers; gunicorn serves `web()` with gevent, as its documentation does.
"""

from __future__ import annotations

from typing import Any

from flask import Flask, Response, jsonify, request
from service_streamer import ManagedModel, RedisStreamer, run_redis_workers_forever

from benchmarks.pipeline import WINDOW_S, Pipeline, Setting


class Model(ManagedModel):
    def init_model(self) -> None:
        self.pipeline = Pipeline(Setting.from_environment())

    def predict(self, batch: list[str]) -> list[Any]:
        return self.pipeline(batch)


def broker(setting: Setting) -> str:
    return f"127.0.0.1:{setting.broker_port}"


def web() -> Flask:
    app = Flask(__name__)
    streamer = RedisStreamer(redis_broker=broker(Setting.from_environment()))

    @app.post("/")
    def answer() -> Response:
        return jsonify(streamer.predict([request.get_json()["inputs"]])[0])

    return app


if __name__ == "__main__":
    setting = Setting.from_environment()
    run_redis_workers_forever(
        Model, setting.max_batch_size, WINDOW_S, worker_num=setting.workers, redis_broker=broker(setting)
    )
