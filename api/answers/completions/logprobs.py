"""The log probabilities of generated tokens, as streams have them, in the forms of OpenAI's interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

UNFINISHED = "\ufffd"  # in the text of a token that is a part of a character


def make_chat_logprobs(scores: Sequence[Any]) -> dict[str, Any]:
    content = [
        {**_describe(token), "top_logprobs": [_describe(other) for other in likeliest]} for token, likeliest in scores
    ]
    return {"content": content, "refusal": None}


def make_text_logprobs(scores: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for token, likeliest in scores:
        found["tokens"].append(token["text"])
        found["token_logprobs"].append(token["logprob"])
        best: dict[str, float] = {}
        for other in likeliest:  # the likeliest first: several tokens may have one text
            best.setdefault(other["text"], other["logprob"])
        found["top_logprobs"].append(best)
        found["text_offset"].append(token["start"])
    return found


def _describe(token: Mapping[str, Any]) -> dict[str, Any]:
    """Return a token as a chat has it. The bytes of one that is a part of a character are not known."""
    text = token["text"]
    known = None if UNFINISHED in text else list(text.encode(errors="surrogatepass"))
    return {"token": text, "logprob": token["logprob"], "bytes": known}
