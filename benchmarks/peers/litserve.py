"""LitServe with batching: https://lightning.ai/docs/litserve/features/batching."""

from __future__ import annotations

from typing import Any

import litserve

from benchmarks.pipeline import WINDOW_S, Pipeline, Setting


class TextAPI(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self.pipeline = Pipeline(Setting.from_environment())

    def decode_request(self, request: dict[str, str]) -> str:
        return request["inputs"]

    def batch(self, inputs: list[str]) -> list[str]:
        return inputs

    def predict(self, texts: list[str]) -> list[Any]:
        return self.pipeline(texts)

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def encode_response(self, output: Any) -> dict[str, Any]:
        return {"output": output}


if __name__ == "__main__":
    setting = Setting.from_environment()
    server = litserve.LitServer(
        TextAPI(max_batch_size=setting.max_batch_size, batch_timeout=WINDOW_S),
        accelerator="cpu",
        devices=1,
        workers_per_device=setting.workers,
        fast_queue=True,  # its documentation's advice for many requests a second
        timeout=False,
    )
    server.run(host="127.0.0.1", port=setting.port, log_level="warning", generate_client_file=False, num_api_servers=1)
