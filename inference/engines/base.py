"""The contract between a pool child and a model.

A model author writes one small class, or a plain function `predict(inputs, parameters)`, and names it in
models.toml as `engine = "package.module:Name"`.
"""

import threading
from abc import ABC, abstractmethod
from typing import Any

from inference.catalog.specs import TORCH, ModelSpec
from inference.engines.stepper import Stepper

BESIDE = {"__init__", "load", "warm_up", "answers_example", "sample"}  # what an answer is not made by


class Engine(ABC):
    """One loaded model on one device. Made, loaded and called in one thread of one pool child."""

    padded = True  # each item of a batch costs what the longest costs; False, set by `load`, when each costs its own
    full_text = False  # a generated text has its prompt before it where `return_full_text` is not given
    note = ""  # how the model is run, if in another way than most: its page and the log show it; set by `load`

    backend = TORCH  # what computes it; set by `load` where that is another

    stepper: Stepper | None = None  # set by `load` where the model generates step by step: `predict` is not called then

    max_tokens: int | None = None  # of a text, that are read, or of a prompt and its answer; set by `load`

    numbers_a_token = 0  # of an answer, where each token that is read has as many in it; set by `load`

    prepares = False  # whether `prepare` does something; set by `load`

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.reading = threading.Lock()  # held by whoever reads inputs: `prepare`, or `predict`

    @abstractmethod
    def load(self, device: str) -> None:
        """Load the weights onto `device` ("cpu", "cuda:0"). Raise with a message that names the cure."""

    def warm_up(self) -> None:  # noqa: B027 - optional by design
        """Run once what is slow the first time, before the replica reports ready."""

    def answers_example(self) -> bool:
        """Return whether the model answers an example of its own now: then what it raised of an input is the fault of
        that input or its parameters. Of one that has none, nothing is known."""
        return False

    def sample(self, text: str) -> Any:
        """An input around `text`, for `manage.py tune`; a text is one itself."""
        return text

    @property
    def is_read_ahead(self) -> bool:
        """Whether `prepare` is called: not of a class that changes how another one answers: nothing may go
        around that."""
        kinds = type(self).__mro__
        place = next(place for place, kind in enumerate(kinds) if "predict_prepared" in vars(kind))
        own = {name for kind in kinds[:place] for name, value in vars(kind).items() if _is_code(value)}
        return self.prepares and not (own - BESIDE) & set(dir(kinds[place]))

    def count_tokens(self, inputs: list[Any], parameters: dict[str, Any]) -> list[int]:
        """Return how many tokens of each input are read, where `numbers_a_token` is set; 0 of one that is wrong."""
        raise NotImplementedError

    @abstractmethod
    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        """Answer `inputs` in one call: a list of the same length and order, of JSON values.

        An item that failed may be an exception in its place; its neighbours are kept. An exception raised
        fails the whole call: the caller then halves the batch to find the culprit.
        """

    def prepare(self, inputs: list[Any], parameters: dict[str, Any]) -> Any:  # noqa: B027 - optional by design
        """What of `predict` needs no device, such as tokens of texts: where work ahead pays it is done in another
        thread, while the call before computes. None, or what it raises: `predict` does it."""

    def predict_prepared(self, prepared: Any, parameters: dict[str, Any]) -> list[Any] | None:
        """As `predict`, of inputs that `prepare` has read; it reads none itself. None: `predict` is to answer."""
        raise NotImplementedError


def _is_code(value: Any) -> bool:
    return callable(value) or isinstance(value, property | staticmethod | classmethod)
