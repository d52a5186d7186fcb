"""mosec with dynamic batching: https://mosecorg.github.io/mosec/examples/pytorch.html."""

from __future__ import annotations

from typing import Any

import mosec

from benchmarks.pipeline import WINDOW_S, Pipeline, Setting


class Text(mosec.Worker):
    def __init__(self) -> None:
        super().__init__()
        self.pipeline = Pipeline(Setting.from_environment())

    def forward(self, data: list[dict[str, str]]) -> list[Any]:
        return self.pipeline([request["inputs"] for request in data])


if __name__ == "__main__":
    setting = Setting.from_environment()
    server = mosec.Server()
    server.append_worker(
        Text, num=setting.workers, max_batch_size=setting.max_batch_size, max_wait_time=int(WINDOW_S * 1000), timeout=60
    )
    server.run()
