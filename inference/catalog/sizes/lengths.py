"""The number of rows that a model runs for an input, and their length, as batching needs them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from inference.catalog import tasks
from inference.catalog.sizes.length_estimates import SAMPLE, Unit
from inference.catalog.specs import ModelSpec
from inference.catalog.tasks import Task

NEW_TOKENS = 256  # of a generated text if neither the request nor the model sets a number: the pipeline's own default
CHAT_TOKENS = 1024  # of an answer to a chat of OpenAI's interface if neither the request nor the model sets a number
# Numbers in the output of one job. A process that shows them takes 150 MB, or 220 MB for vectors from base64: 2,048
# vectors of 4,096 numbers pass.
MOST_ANSWERED = 2_000_000
RESPONSE_FIELDS = "response_fields"  # of a chat's last message: what a response repeats, and no model reads
NONE: Mapping[str, Any] = MappingProxyType({})


def is_input_list(spec: ModelSpec, inputs: object) -> bool:
    """Return True if `inputs` is a list of items; a list of chat messages is one item, and so is an empty list."""
    return (
        isinstance(inputs, list) and bool(inputs) and not (tasks.find_task(spec.task).takes_chats and _is_chat(inputs))
    )


def list_items(spec: ModelSpec, inputs: Any) -> list[Any]:
    return list(inputs) if is_input_list(spec, inputs) else [inputs]


def measure_inputs(spec: ModelSpec, inputs: object, parameters: Mapping[str, Any] = NONE) -> tuple[int, int]:
    """Return the number of rows and the tokens of a row, each at least 1.

    A text is a row, and so is each of its labels, or of the sentences that it is compared with. The tokens are those of
    the longest input, with what is generated and without what `max_length` cuts off. Of an input with several texts
    they are the average of its texts.
    """
    task = tasks.find_task(spec.task)
    shapes = [_measure_item(spec, task, item, parameters) for item in list_items(spec, inputs)]
    return sum(rows for rows, _ in shapes), max(1, *(tokens for _, tokens in shapes))


@dataclass(slots=True, kw_only=True)
class Part:
    """A part of a list: inputs that follow each other."""

    place: int  # of its first input in the list
    inputs: list[Any]
    size: int  # rows
    length: int  # tokens of the longest


def split_list(spec: ModelSpec, inputs: list[Any], parameters: Mapping[str, Any] = NONE) -> list[Part]:
    """Split a list of inputs into parts of as many rows as a batch holds; an input that alone has more is one part."""
    task = tasks.find_task(spec.task)
    parts: list[Part] = []
    for place, item in enumerate(inputs):
        rows, tokens = _measure_item(spec, task, item, parameters)
        if parts and (last := parts[-1]).size + rows <= spec.max_batch_size:
            last.inputs.append(item)
            last.size += rows
            last.length = max(last.length, tokens)
        else:
            parts.append(Part(place=place, inputs=[item], size=rows, length=max(1, tokens)))
    return parts


def estimate_length(spec: ModelSpec, item: object) -> int:
    """Return the tokens of one input, with those that the model would cut off."""
    task = tasks.find_task(spec.task)
    return _estimate_item_length(task.unit, _drop_fields_of_last_message(item) if task.takes_chats else item)


def drop_response_fields(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message of a chat without what a response repeats."""
    return {name: value for name, value in message.items() if name != RESPONSE_FIELDS}


def _drop_fields_of_last_message(chat: object) -> object:
    if not isinstance(chat, list) or not chat or not isinstance(chat[-1], dict):
        return chat
    return [*chat[:-1], drop_response_fields(chat[-1])]


def _estimate_item_length(unit: Unit, item: object) -> int:
    if isinstance(item, str):
        return unit(item)
    if isinstance(item, dict):
        item = list(item.values())
    if not isinstance(item, list):
        return 1
    total = sum(_estimate_item_length(unit, part) for part in item[:SAMPLE])
    return total if len(item) <= SAMPLE else total * len(item) // SAMPLE


def _measure_item(spec: ModelSpec, task: Task, item: object, parameters: Mapping[str, Any]) -> tuple[int, int]:
    texts, times = task.rows(item, parameters)
    limit = spec.max_length if spec.max_length and not task.takes_chats else sys.maxsize
    each = [min(limit, estimate_length(spec, text)) for text in texts]
    count = max(1, len(each))
    tokens = -(-sum(each) // count)
    if task.generates:
        new_tokens = parameters.get("max_new_tokens", 0 if "max_length" in parameters else NEW_TOKENS)
        most = max(tokens, spec.max_length or spec.max_batch_tokens)  # the rest of the context bounds the answer
        tokens = min(most, max(tokens + new_tokens, parameters.get("max_length", 0)))
    return times * count, tokens


def _is_chat(inputs: list[Any]) -> bool:
    return isinstance(inputs[0], dict) and "role" in inputs[0]
