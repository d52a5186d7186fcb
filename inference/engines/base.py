"""The contract between a pool child and a model.

A model author writes one small class, or a plain function `predict(inputs, parameters)`, and names it in
models.toml as `engine = "package.module:Name"`.
"""

from abc import ABC, abstractmethod
from typing import Any

from inference.catalog.specs import TORCH, ModelSpec
from inference.engines.stepper import Stepper


class Engine(ABC):
    """One loaded model on one device. Made, loaded and called in one thread of one pool child."""

    padded = True  # each item of a batch costs what the longest costs; False, set by `load`, when each costs its own
    note = ""  # how the model is run, if in another way than most: its page and the log show it; set by `load`

    backend = TORCH  # what computes it; set by `load` where that is another

    stepper: Stepper | None = None  # set by `load` where the model generates step by step: `predict` is not called then

    max_tokens: int | None = None  # of a text, that are read: the rest is cut off; set by `load`

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec

    @abstractmethod
    def load(self, device: str) -> None:
        """Load the weights onto `device` ("cpu", "cuda:0"). Raise with a message that names the cure."""

    def warm_up(self) -> None:  # noqa: B027 - optional by design
        """Run once what is slow the first time, before the replica reports ready."""

    def sample(self, text: str) -> Any:
        """An input around `text`, for `manage.py tune`; a text is one itself."""
        return text

    @abstractmethod
    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        """Answer `inputs` in one call: a list of the same length and order, of JSON values.

        An item that failed may be an exception in its place; its neighbours are kept. An exception raised
        fails the whole call: the caller then halves the batch to find the culprit.
        """
