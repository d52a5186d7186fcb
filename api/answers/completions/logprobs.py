"""The log probabilities of tokens, as streams have them, in the forms of OpenAI's interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inference.streams.output_texts import pair_tokens_with_likeliest

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
        found["top_logprobs"].append(None if token["logprob"] is None else best)
        found["text_offset"].append(token["start"])
    return found


def measure_prompt(prompt: object, prefill: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of characters of a prompt: a text, or tokens, which `prefill` describes."""
    if isinstance(prompt, str):
        return len(prompt)
    last = prefill[-1]
    return int(last["start"]) + (0 if last["special"] else len(last["text"]))


def list_scores_with_prompt(details: Mapping[str, Any], *, prompt: int) -> list[Any]:
    """Return the scores of all tokens of a text that begins with a prompt of so many characters.

    Those that do not show are among them.
    """
    answer = pair_tokens_with_likeliest(details.get("tokens", ()), details.get("top_tokens", ()))
    return [
        *pair_tokens_with_likeliest(details["prefill"], details["prefill_top_tokens"]),
        *([{**token, "start": prompt + token["start"]}, likeliest] for token, likeliest in answer),
    ]


def _describe(token: Mapping[str, Any]) -> dict[str, Any]:
    """Return a token as a chat has it. The bytes of one that is a part of a character are not known."""
    text = token["text"]
    known = None if UNFINISHED in text else list(text.encode(errors="surrogatepass"))
    return {"token": text, "logprob": token["logprob"], "bytes": known}
