"""Whether a model takes these inputs, told before anything is stored. Pure: the catalog's entry and the values only.

What only the tokenizer or the decoder of a file can tell is left to the engine.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

from inference.catalog import lengths, parameters, task_parameters, words
from inference.catalog.specs import ModelSpec
from inference.errors import InvalidInput

SURELY_TOO_LONG = 2.0  # times the limit: the estimate of a text's tokens is rough, the engine counts them
MAX_SENTENCES = 1000
MAX_ROWS = 1024  # of one job: its inputs, each times its labels or with its sentences; never below max_batch_size


def validate(spec: ModelSpec, inputs: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with their defaults. Raises `InvalidInput`, which names the field."""
    validate_inputs(spec, inputs)
    checked = validate_parameters(spec, given)
    check_rows(spec, lengths.measure(spec, inputs, checked)[0])
    return checked


def check_rows(spec: ModelSpec, rows: int) -> None:
    """Of the measured size of a job. Raises `InvalidInput`."""
    if rows > max(MAX_ROWS, spec.max_batch_size):
        raise InvalidInput(f"inputs: their labels or sentences make {rows} texts; at most {MAX_ROWS} run in one job.")


def validate_parameters(spec: ModelSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """The child calls this again: a row may have been written by anybody."""
    return parameters.validate(spec.parameters, given)


def validate_inputs(spec: ModelSpec, inputs: Any) -> None:
    check = _CHECKS.get(task_parameters.ALIASES.get(spec.task, spec.task))
    if inputs is None or inputs == []:
        raise InvalidInput("inputs must be one input, or a list of at least one.")
    several = lengths.is_list(spec, inputs)
    items = lengths.items(spec, inputs)
    if len(items) > spec.max_batch_size:
        raise InvalidInput(
            f"inputs: {spec.name!r} takes at most {spec.max_batch_size} inputs in one job, not {len(items)}."
            " Post many at once to /v1/jobs/bulk."
        )
    for index, item in enumerate(items):
        where = f"inputs[{index}]" if several else "inputs"
        if item is None:
            raise _wrong(where, "an input", item)
        if check:
            check(spec, where, item)
        if spec.input:
            parameters.check(where, spec.input, item)


def _text(spec: ModelSpec, where: str, value: Any) -> None:
    if not isinstance(value, str):
        raise _wrong(where, "a string", value)


def _text_or_pair(spec: ModelSpec, where: str, value: Any) -> None:
    if isinstance(value, dict):
        _fields(where, value, "text", "text_pair")
        for name, part in value.items():
            _text(spec, f"{where}.{name}", part)
    else:
        _text(spec, where, value)


def _prompt(spec: ModelSpec, where: str, value: Any) -> None:
    if isinstance(value, list):
        for index, message in enumerate(value):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
                raise _wrong(f"{where}[{index}]", 'a message such as {"role": "user", "content": "…"}', message)
    else:
        _text(spec, where, value)
    tokens = lengths.length(spec, value)
    if spec.max_length and tokens > SURELY_TOO_LONG * spec.max_length:
        raise InvalidInput(f"{where}: about {tokens} tokens, where at most {spec.max_length} fit.", field=where)


def _sentences(spec: ModelSpec, where: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise _wrong(where, '{"source_sentence": "…", "sentences": ["…"]}', value)
    _fields(where, value, "source_sentence", "sentences")
    _text(spec, f"{where}.source_sentence", value.get("source_sentence"))
    sentences = value.get("sentences")
    if not isinstance(sentences, list) or not 1 <= len(sentences) <= MAX_SENTENCES:
        raise _wrong(f"{where}.sentences", f"a list of 1 to {MAX_SENTENCES} strings", sentences)
    for index, sentence in enumerate(sentences):
        _text(spec, f"{where}.sentences[{index}]", sentence)


def _file(spec: ModelSpec, where: str, value: Any) -> None:
    if not isinstance(value, str):
        raise _wrong(where, "a base64 string of the file's bytes", value)
    content = value.partition(",")[2] if value.startswith("data:") else value
    try:
        empty = not base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        empty = True
    if empty:
        raise InvalidInput(
            f"{where}: must be base64 of the file's bytes, or send the bytes themselves as the body;"
            " addresses are not fetched.",
            field=where,
        )


def _fields(where: str, value: Mapping[str, Any], *known: str) -> None:
    for name in value:
        if name not in known:
            raise InvalidInput(f"{where}.{words.name(name)}: unknown field; {words.hint(name, known)}", field=where)
    if known[0] not in value:
        raise InvalidInput(f"{where}.{known[0]}: is required.", field=f"{where}.{known[0]}")


def _wrong(where: str, right: str, value: Any) -> InvalidInput:
    return InvalidInput(f"{where}: must be {right}, not {words.type_of(value)}.", field=where)


_CHECKS: Mapping[str, Callable[[ModelSpec, str, Any], None]] = {
    "text-classification": _text_or_pair,
    "token-classification": _text,
    "zero-shot-classification": _text,
    "fill-mask": _text,
    "text-to-audio": _text,
    "feature-extraction": _text,
    "text-generation": _prompt,
    "sentence-similarity": _sentences,
    **dict.fromkeys(lengths.IMAGE_TASKS | lengths.AUDIO_TASKS, _file),
}
