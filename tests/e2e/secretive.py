"""Models whose own code fails, each in another place, with words that only operators may read."""

from __future__ import annotations

from typing import Any

from inference.engines.base import Engine
from inference.errors import BadOutput, ModelUnavailable

SECRET = "postgres.internal knows xyzzy"
UNLOADED = ("raises", "refuses")  # what `load` of a model of this name does


class NeverLoads(Engine):
    def load(self, device: str) -> None:
        self.connect()

    def connect(self) -> None:
        raise ModelUnavailable(SECRET) if self.spec.name == "refuses" else RuntimeError(SECRET)

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        return inputs


class Unreadable(dict[str, Any]):
    def items(self) -> Any:
        raise LookupError(SECRET)


def look_up(text: str) -> Any:
    raise KeyError(SECRET)


def predict(inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
    """Fail as each input asks."""
    return [answer(text) for text in inputs]


def answer(text: str) -> Any:
    if text == "unreadable":
        return Unreadable(a=1)
    if text == "placed":
        return BadOutput(SECRET)
    if text == "memory":
        raise MemoryError(SECRET)
    return look_up(text)
