"""Checks of one input of a task, as far as they are possible without its tokenizer or its decoder.

A check takes the path of the input in the request, and the input. It raises `InvalidInput`, which names the field.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

from inference.errors import InvalidInput, make_field_error
from inference.values.error_phrases import describe_value, json_type_of, suggest_name, truncate_name

Check = Callable[[str, Any], None]

MAX_SENTENCES = 1000
TOKENS = "prompt_token_ids"  # the field of a prompt that is tokens of the model's own tokenizer, as vLLM calls them


def accept_anything(where: str, value: object) -> None:
    """Accept any input: the engine reports what is wrong with it."""


def check_text(where: str, value: object) -> None:
    if not isinstance(value, str):
        raise make_wrong_type_error(where, "a string", value)


def check_text_or_pair(where: str, value: object) -> None:
    if isinstance(value, dict):
        _check_fields(where, value, "text", "text_pair")
        for name, part in value.items():
            check_text(f"{where}.{name}", part)
    else:
        check_text(where, value)


def check_pair(where: str, value: object) -> None:
    """Require a query, and a text that may answer it."""
    if not isinstance(value, dict):
        raise make_wrong_type_error(where, '{"text": "the query", "text_pair": "a text"}', value)
    _check_fields(where, value, "text", "text_pair")
    for name in ("text", "text_pair"):
        check_text(f"{where}.{name}", value.get(name))


def check_prompt(where: str, value: object) -> None:
    """Require a text, a list of chat messages, or tokens of the model's own tokenizer."""
    if isinstance(value, dict):
        _check_fields(where, value, TOKENS)
        _check_tokens(f"{where}.{TOKENS}", value[TOKENS])
        return
    if not isinstance(value, list):
        check_text(where, value)
        return
    if not value:
        raise InvalidInput(f"{where}: must be a text, or a list of at least one message.", field=where)
    for index, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
            raise make_wrong_type_error(
                f"{where}[{index}]", 'a message such as {"role": "user", "content": "…"}', message
            )


def _check_tokens(where: str, value: object) -> None:
    if not isinstance(value, list) or not value:
        raise make_field_error(where, "must be a list of at least one token.")
    for index, token in enumerate(value):
        if not _is_token(token):
            reason = f"must be a whole number from 0, not {describe_value(token)}."
            raise make_field_error(f"{where}[{index}]", reason)


def is_token_list(value: object) -> bool:
    """Return True for a list of numbers that may be tokens of some tokenizer."""
    return isinstance(value, list) and bool(value) and all(map(_is_token, value))


def _is_token(value: object) -> bool:
    return type(value) is int and value >= 0


def check_sentences(where: str, value: object) -> None:
    if not isinstance(value, dict):
        raise make_wrong_type_error(where, '{"source_sentence": "…", "sentences": ["…"]}', value)
    _check_fields(where, value, "source_sentence", "sentences")
    check_text(f"{where}.source_sentence", value.get("source_sentence"))
    others = value.get("sentences")
    if not isinstance(others, list) or not 1 <= len(others) <= MAX_SENTENCES:
        raise make_wrong_type_error(f"{where}.sentences", f"a list of 1 to {MAX_SENTENCES} strings", others)
    for index, sentence in enumerate(others):
        check_text(f"{where}.sentences[{index}]", sentence)


def check_media(where: str, value: object) -> None:
    """Require the bytes of an image or a sound, in base64."""
    if not isinstance(value, str):
        raise make_wrong_type_error(where, "a base64 string of the file's bytes", value)
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


def make_wrong_type_error(where: str, right: str, value: object) -> InvalidInput:
    return InvalidInput(f"{where}: must be {right}, not {json_type_of(value)}.", field=where)


def _check_fields(where: str, value: Mapping[str, Any], *known: str) -> None:
    for name in value:
        if name not in known:
            raise InvalidInput(
                f"{where}.{truncate_name(name)}: unknown field; {suggest_name(name, known)}", field=where
            )
    if known[0] not in value:
        raise InvalidInput(f"{where}.{known[0]}: is required.", field=f"{where}.{known[0]}")
