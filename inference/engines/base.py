"""The contract between a child process and a model.

The author of a model writes one small class, or a plain function `predict(inputs, parameters)`, and names it in
models.toml as `engine = "package.module:Name"`.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from inference.catalog.specs import TORCH, ModelSpec
from inference.engines.stepper import Stepper

# Methods that take no part in an answer.
BESIDE = {"__init__", "load", "warm_up", "try_example", "make_input_from_text"}


class Engine(ABC):
    """A loaded model on one device. It is made, loaded and called in one thread of one child process."""

    padded = True  # each item of a batch costs what the longest costs; `load` sets False where each costs its own
    full_text = False  # True if a generated text begins with its prompt where `return_full_text` is not given
    note = ""  # how the model is run, if in another way than most: its page and the log show it; set by `load`

    facts: Mapping[str, Any] = MappingProxyType({})  # of the weights, that clients may want to know; set by `load`

    backend = TORCH  # what computes the model; set by `load` where it is another one

    stepper: Stepper | None = None  # set by `load` where the model generates step by step: `predict` is not called then

    max_tokens: int | None = None  # tokens that are read of a text, or of a prompt and its answer; set by `load`

    numbers_a_token = 0  # numbers in an answer for each token read, where that is fixed, else 0; set by `load`

    prepares = False  # True if `prepare` does something; set by `load`

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.reading = threading.Lock()  # held while `prepare` or `predict` reads inputs

    @abstractmethod
    def load(self, device: str) -> None:
        """Load the weights onto `device` ("cpu", "cuda:0"). Raise an error whose message names the cure."""

    def warm_up(self) -> None:  # noqa: B027 - optional by design
        """Run once what is slow the first time, before the replica reports ready."""

    def try_example(self) -> bool:
        """Return True if the model answers an example of its own now.

        Then an input that it raised an error for, or that input's parameters, is at fault. A model without an example
        returns False: nothing is known of it.
        """
        return False

    def make_input_from_text(self, text: str) -> Any:
        """Return an input around `text`, for `manage.py tune`; by default the text itself."""
        return text

    @property
    def can_prepare_ahead(self) -> bool:
        """True if `prepare` is called, as it does something and nothing forbids it.

        It is not called for a subclass that overrides a step of the class with `predict_prepared_inputs`: the answer
        would go around that override.
        """
        kinds = type(self).__mro__
        place = next(place for place, kind in enumerate(kinds) if "predict_prepared_inputs" in vars(kind))
        own = {name for kind in kinds[:place] for name, value in vars(kind).items() if _is_code(value)}
        return self.prepares and not (own - BESIDE) & set(dir(kinds[place]))

    def count_tokens(self, inputs: list[Any], parameters: dict[str, Any]) -> list[int]:
        """Return how many tokens of each input are read; 0 for an input that is wrong.

        It is called only where `numbers_a_token` is set.
        """
        raise NotImplementedError

    @abstractmethod
    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        """Answer `inputs` in one call, with a list of JSON values of the same length and order.

        The answer to an item that failed may be an exception in its place; the answers of its neighbours are kept. If
        `predict` raises an exception, the whole call fails: the caller then halves the batch to find the culprit.
        """

    def prepare(self, inputs: list[Any], parameters: dict[str, Any]) -> Any:  # noqa: B027 - optional by design
        """Do the part of `predict` that needs no device, such as making tokens of texts.

        Where work ahead pays, it runs in another thread while the call before computes. If it returns None or raises an
        error, `predict` does the work.
        """

    def predict_prepared_inputs(self, prepared: Any, parameters: dict[str, Any]) -> list[Any] | None:
        """Answer inputs that `prepare` has read, as `predict` does, without reading any itself.

        If it returns None, `predict` is called to answer.
        """
        raise NotImplementedError


def _is_code(value: object) -> bool:
    return callable(value) or isinstance(value, property | staticmethod | classmethod)
