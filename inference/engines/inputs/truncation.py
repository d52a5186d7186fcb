"""As much of a text as a model reads: what follows costs its tokenizer as much, and is cut off."""

from typing import Any

CHARACTERS = 8  # of a token, more than most have
MOST_CHARACTERS = 200  # of a token, on average: blanks and what no vocabulary has give none, and cost as much
MARGIN = 128  # tokens that cutting within a word may change


def beginning(tokenizer: Any, text: str, limit: int | None = None) -> str:
    """A part of `text` whose first `limit` tokens are those of the whole; by default the tokenizer's own limit.

    Tokenizing all, to cut it then, takes a second a megabyte. Of a text that has fewer tokens in MOST_CHARACTERS times
    as many characters, the rest is not read. A tokenizer that cuts at the left reads the end.
    """
    wanted = MARGIN + (limit or tokenizer.model_max_length)
    size, most = CHARACTERS * wanted, MOST_CHARACTERS * wanted
    while size < min(len(text), most):
        part = _part(tokenizer, text, size)
        if len(tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"]) >= wanted:
            return part
        size *= 4
    return _part(tokenizer, text, most)


def _part(tokenizer: Any, text: str, size: int) -> str:
    return text[-size:] if tokenizer.truncation_side == "left" else text[:size]
