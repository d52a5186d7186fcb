"""The answers of transformers' own pipeline, made before anything of it is changed for batches."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

from transformers.pipelines import Pipeline

from inference.engines.artifacts.pipeline_loader import NO_LIMIT, find_max_positions
from inference.engines.inputs.feeds import Feed, TextFeed
from inference.engines.inputs.truncation import cut_unread_text
from inference.engines.runtime import parity
from inference.engines.runtime.exception_diagnosis import describe_exception, is_device_failure, is_out_of_memory
from inference.engines.runtime.json_values import convert_to_json
from inference.errors import ContextLengthExceeded

CASED = "The CAT sat in PARIS, in an \u00c9t\u00e9"  # tells tokenizers that keep capitals or accents from others

Answers = Callable[[list[Any], dict[str, Any]], list[Any]]


class Reference:
    """Inputs with special tokens and capitals, and the answers of one pipeline to them.

    For a text that is cut only the tokens are compared, as answering it would take long.
    """

    def __init__(self, pipe: Pipeline, feed: Feed) -> None:
        self.parameters = {**feed.parameters, **feed.compared}
        self.inputs: list[Any] = []  # inputs that the pipeline answers
        self.answers: list[Any] = []
        self.pipe = pipe
        self.long = _make_long_text(pipe, feed)
        self.cut = self._tokenize_text(self.long)
        self.repeats = True  # False for a model that answers the same input differently from call to call
        call = functools.partial(_call_pipeline, pipe, feed)
        for value in _make_inputs(pipe, feed):
            try:
                answer = convert_to_json(call(value))
            except Exception as error:
                if is_device_failure(error) or is_out_of_memory(error):
                    raise
                continue
            self.inputs.append(value)
            self.answers.append(answer)
        if self.inputs:
            self.repeats = parity.are_alike(convert_to_json(call(self.inputs[0])), self.answers[0])

    def describe_difference(self, answers: Answers) -> str:
        """Return how `answers` differs for the first input that it answers otherwise, or an empty string.

        `answers` is called with each input alone.
        """
        if self.long and self._tokenize_text(cut_unread_text(self.pipe.tokenizer, self.long)) != self.cut:
            return "a long text is cut otherwise"
        if not self.repeats:
            return ""
        for value, expected in zip(self.inputs, self.answers, strict=True):
            [found] = answers([value], self.parameters)
            if isinstance(found, ContextLengthExceeded):
                continue  # the model's table has a limit that the library does not know
            if isinstance(found, BaseException):
                return f"{_describe_input(value)} raises {describe_exception(found)}"
            if not parity.are_alike(convert_to_json(found), expected):
                return f"{_describe_input(value)} is answered otherwise"
        return ""

    def _tokenize_text(self, text: str) -> list[int]:
        return list(self.pipe.tokenizer(text, truncation=True)["input_ids"]) if text else []


def _call_pipeline(pipe: Pipeline, feed: Feed, value: object) -> Any:
    """Call the pipeline as a whole, without the changes that a task's own `__call__` makes to one answer."""
    parameters = {**feed.preprocess, **feed.parameters, **feed.compared}
    if not isinstance(feed, TextFeed):
        value, parameters = feed.read_input_and_parameters(value, pipe, parameters)
    return Pipeline.__call__(pipe, value, **parameters)


def _make_inputs(pipe: Pipeline, feed: Feed) -> Iterator[Any]:
    if not isinstance(feed, TextFeed):
        yield from feed.make_examples(pipe)
        return
    for text in (CASED, *parity.make_special_token_texts(pipe.tokenizer)):
        yield feed.make_input_from_text(text, pipe)


def _make_long_text(pipe: Pipeline, feed: Feed) -> str:
    """Return a text that the library cuts.

    It is empty if texts are not cut, or if the library's limit is more than the model can read.
    """
    limit = pipe.tokenizer.model_max_length if feed.is_cut else 0
    return "cat " * (limit + 1) if 0 < limit <= find_max_positions(pipe.model) < NO_LIMIT else ""


def _describe_input(value: object) -> str:
    return f"the text {value[:60]!r}" if isinstance(value, str) else "its example"
