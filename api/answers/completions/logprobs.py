"""The log probabilities of generated tokens, from the details of an answer, in the forms of OpenAI's interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

UNFINISHED = "\ufffd"  # in the text of a token that is a part of a character


def make_chat_logprobs(details: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the log probabilities for a chat, or None if the request asked for none."""
    if "tokens" not in details:
        return None
    content = [
        {**_describe(token), "top_logprobs": [_describe(other) for other in likeliest]}
        for token, likeliest in _list_tokens(details)
    ]
    return {"content": content, "refusal": None}


def make_text_logprobs(details: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the log probabilities for a text, or None if the request asked for none."""
    if "tokens" not in details:
        return None
    found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    offset = 0
    for token, likeliest in _list_tokens(details):
        found["tokens"].append(token["text"])
        found["token_logprobs"].append(token["logprob"])
        best: dict[str, float] = {}
        for other in likeliest:  # the likeliest first: several tokens may have one text
            best.setdefault(other["text"], other["logprob"])
        found["top_logprobs"].append(best)
        found["text_offset"].append(offset)
        offset += len(token["text"])
    return found


def _list_tokens(details: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], list[Mapping[str, Any]]]]:
    """Yield the tokens that show in the text, each with the likeliest in its place."""
    for token, likeliest in zip(details["tokens"], details["top_tokens"], strict=True):
        if not token["special"]:
            yield token, likeliest


def _describe(token: Mapping[str, Any]) -> dict[str, Any]:
    """Return a token as a chat has it. The bytes of one that is a part of a character are not known."""
    text = token["text"]
    known = None if UNFINISHED in text else list(text.encode(errors="surrogatepass"))
    return {"token": text, "logprob": token["logprob"], "bytes": known}
