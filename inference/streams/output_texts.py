"""The text that a job generated, taken from its output.

A stream sends this text, also if the model published none while it ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inference.models import Job


def extract_generated_text(job: Job) -> str | None:
    """Return the text that the job generated, without its prompt. It is None if the output holds no text."""
    text = extract_text(job.output)
    return None if text is None else text[job.prompt_length or 0 :]


def extract_text(output: object) -> str | None:
    """Return the text in an output, perhaps with its prompt. It is None if there is none."""
    text = extract_single_answer(output).get("generated_text")
    if isinstance(text, list) and text and isinstance(text[-1], dict):  # a chat with its answer
        text = text[-1].get("content")
    return text if isinstance(text, str) else None


def extract_single_answer(output: object) -> Mapping[str, Any]:
    """Return the answer to the one input of a job. It is empty if the output has another shape."""
    answer = output[0] if isinstance(output, list) and len(output) == 1 else output
    return answer if isinstance(answer, dict) else {}


def read_token_logprobs(details: object) -> list[Any] | None:
    """Return the scores of the tokens that show in a text, as chunks have them, from the details of the answer.

    The result is None if there are no log probabilities.
    """
    match details:
        case {"tokens": list(tokens), "top_tokens": list(likeliest)}:
            return [each for each in pair_tokens_with_likeliest(tokens, likeliest) if not each[0]["special"]]
    return None


def pair_tokens_with_likeliest(tokens: Sequence[Any], likeliest: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield each token, which says where it starts, with the likeliest in its place.

    A token that does not say so, as an engine of yours may give it, starts behind those before it.
    """
    start = 0
    for token, others in zip(tokens, likeliest, strict=False):
        yield [{"start": start, **token}, others]
        start += 0 if token["special"] else len(token["text"])
