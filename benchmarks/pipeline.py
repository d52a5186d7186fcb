"""The one pipeline that every system here serves, and what a peer's process is told through its environment."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

PREFIX = "BENCHMARK_"
WINDOW_S = 0.01  # how long a peer gathers a batch, where its documentation names no value of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is served, and with what."""

    task: str
    folder: str  # of the model
    workers: int  # processes that hold a model
    threads: int  # torch threads of each
    max_batch_size: int
    port: int  # of HTTP
    broker_port: int
    precision: str = "float32"

    def to_environment(self) -> dict[str, str]:
        values = {PREFIX + name.upper(): str(value) for name, value in asdict(self).items()}
        threads = {name: str(self.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        return values | threads | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

    @classmethod
    def from_environment(cls) -> Setting:
        numbers = ("workers", "threads", "max_batch_size", "port", "broker_port")
        return cls(
            task=os.environ[PREFIX + "TASK"],
            folder=os.environ[PREFIX + "FOLDER"],
            precision=os.environ[PREFIX + "PRECISION"],
            **{name: int(os.environ[PREFIX + name.upper()]) for name in numbers},
        )


class Pipeline:
    """Answers texts, one output a text, in one call."""

    def __init__(self, setting: Setting) -> None:
        import torch
        from transformers import pipeline

        torch.set_num_threads(setting.threads)
        self.task = setting.task
        self.pipe: Any = pipeline(
            setting.task, model=setting.folder, dtype=getattr(torch, setting.precision), device="cpu"
        )

    def __call__(self, texts: list[Any]) -> list[Any]:
        if self.task == "text-generation":
            return self.generated(texts)
        outputs = self.pipe(texts, batch_size=len(texts))
        return [outputs] if self.task == "fill-mask" and len(texts) == 1 else outputs  # it unwraps a list of one

    def generated(self, inputs: list[dict[str, Any]]) -> list[Any]:
        """A call runs until the longest answer is there; what it generates too much for the others stays in them."""
        longest = max(one["max_new_tokens"] for one in inputs)
        settings = {"max_new_tokens": longest, "do_sample": False, "return_full_text": False}
        outputs: list[Any] = self.pipe([one["prompt"] for one in inputs], batch_size=len(inputs), **settings)
        return outputs
