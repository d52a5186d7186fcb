"""Shortcuts through a model: each is tried out when the model is loaded, and left out if an answer would change.

A shortcut knows how transformers computes, which may differ in another release. Any error that it raises, when it is
installed or in a later call, turns it off with a warning: then the plain pipeline answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from inference.engines.accelerate.shortcut import Override, Shortcut
from inference.engines.base import Engine
from inference.engines.runtime.exception_diagnosis import describe_exception, is_device_failure, is_out_of_memory
from inference.engines.runtime.parity import BatchingChoice, Trial
from inference.engines.runtime.row_groups import BatchingMode
from inference.errors import InferenceError
from inference.telemetry import logs

if TYPE_CHECKING:
    from transformers import Pipeline, PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)
S = TypeVar("S", bound=Shortcut)


class Shortcuts:
    """The shortcuts of one model that are on, and the way its inputs run together with them.

    `install_shortcuts` makes it.
    """

    def __init__(self, kind: str, plain: BatchingChoice) -> None:
        self.kind = kind
        self.plain = plain
        self.unpadded = False
        self._installed: list[Shortcut] = []
        self._are_on = True

    @property
    def batching_choice(self) -> BatchingChoice:
        return BatchingChoice(mode=BatchingMode.PADDED) if self.unpadded and self._are_on else self.plain

    @property
    def pads_batches(self) -> bool:
        """True if each item of a batch costs what the longest costs."""
        return self.batching_choice.mode is BatchingMode.PADDED and not (self.unpadded and self._are_on)

    def add_if_equal(self, name: str, make: Callable[[], S | None], holds: Callable[[], bool]) -> S | None:
        """Turn on the shortcut that `make` returns, and return it, if answers hold with it; else return None.

        `make` returns None for a model that the shortcut is not for.
        """
        shortcut = None
        try:
            shortcut = make()
            if shortcut is None:
                return None
            shortcut.turn_on()
            problem = "" if holds() else "its answers would change"
        except Exception as error:
            problem = f"it raised {describe_exception(error)}"
        if shortcut and not problem:
            self._installed.append(shortcut)
            return shortcut
        if shortcut:
            shortcut.turn_off()
        logger.warning("%s runs without the shortcut %r: %s", self.kind, name, problem)
        return None

    def guard_call(self, call: Callable[[], list[Any]]) -> list[Any]:
        """Return the answers of `call`.

        If it raises an error with the shortcuts on and answers all inputs with them off, they stay off.
        """
        try:
            return call()
        except Exception as error:
            if not self._may_be_at_fault(error):
                raise
            problem = logs.describe_error(error)
        answers: list[Any] = []
        try:
            self._turn_shortcuts(on=False)
            answers = call()
        finally:
            if not answers or any(isinstance(answer, BaseException) for answer in answers):
                self._turn_shortcuts(on=True)
        if not self._are_on:
            logger.warning("%s runs without its shortcuts from now on: one raised %s", self.kind, problem)
        return answers

    def _may_be_at_fault(self, error: Exception) -> bool:
        of_the_device = is_out_of_memory(error) or is_device_failure(error)
        return bool(self._installed) and self._are_on and not of_the_device and not isinstance(error, InferenceError)

    def _turn_shortcuts(self, *, on: bool) -> None:
        self._are_on = on
        for shortcut in self._installed if on else reversed(self._installed):
            shortcut.turn_on() if on else shortcut.turn_off()


def install_shortcuts(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: str, trial: Trial) -> Shortcuts:
    """Turn on the shortcuts by which `model` gives the same answers in a cheaper way. `trial` runs the model."""
    shortcuts = Shortcuts(model.config.model_type, trial.choose_batching_mode())

    def holds() -> bool:
        return trial.has_parity(BatchingMode.ALONE) and trial.has_parity(shortcuts.batching_choice.mode)

    shortcuts.add_if_equal("packed weights", lambda: _make_packed_weights(model), holds)
    unpadded = shortcuts.add_if_equal(
        "no padding", lambda: _make_unpadded_encoder(model), lambda: holds() and trial.has_parity(BatchingMode.PADDED)
    )
    shortcuts.unpadded = unpadded is not None
    if unpadded and task in ("text-classification", "text-ranking", "zero-shot-classification"):
        shortcuts.add_if_equal("first tokens only", lambda: Override(unpadded.value, "first_only", value=True), holds)
    if task == "fill-mask":
        shortcuts.add_if_equal("masks only", lambda: _make_scorer(model, tokenizer), holds)
    # Graphs come last, as they compute what others would: each shortcut is tried with batches that it computes itself.
    shortcuts.add_if_equal("CUDA graphs", lambda: _make_graphs(model, tokenizer, unpadded), holds)
    return shortcuts


# Modules are imported while a shortcut is made: if one cannot be imported, the plain pipeline answers.


def make_batch_answers_shortcut(engine: Engine, pipe: Pipeline, task: str) -> Override | None:
    """Make the shortcut by which `engine.at_once` answers many texts together; None for a task that has none."""
    from inference.engines.accelerate import batch_answers, fill_mask

    if task == "fill-mask":
        return Override(engine, "at_once", fill_mask.FillMaskAnswers(pipe))
    return Override(engine, "at_once", batch_answers.BatchAnswers(pipe, task)) if task in batch_answers.READS else None


def make_encode_shortcut(engine: Engine, tokenizer: PreTrainedTokenizerBase) -> Override | None:
    """Make the shortcut by which `engine.encode` encodes a list of texts, cut at a limit, as `tokenizer` does."""
    from inference.engines.accelerate import fast_tokenizer

    encode = fast_tokenizer.make_encoder(tokenizer)
    return Override(engine, "encode", encode) if encode else None


def _make_unpadded_encoder(model: PreTrainedModel) -> Override | None:
    from inference.engines.accelerate import unpadded_encoder

    return unpadded_encoder.make_unpadded_encoder(model)


def _make_graphs(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, unpadded: Override | None
) -> Override | None:
    from inference.engines.accelerate import cuda_graphs

    return cuda_graphs.make_graphs(model, tokenizer, unpadded)


def _make_packed_weights(model: PreTrainedModel) -> Shortcut | None:
    from inference.engines.accelerate import prepacked_weights

    return prepacked_weights.make_packed_weights(model)


def _make_scorer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Any:
    from inference.engines.accelerate import fill_mask

    return fill_mask.make_scorer(model, tokenizer.mask_token_id)
