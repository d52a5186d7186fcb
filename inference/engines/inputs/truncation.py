"""The part of a text that a model reads.

What follows it would cost the tokenizer as much, and is cut off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inference.errors import ContextLengthExceeded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHARACTERS = 8  # of a token; most tokens have fewer
MOST_CHARACTERS = 200  # of a token on average: blanks and characters of no vocabulary give no tokens, and cost as much
MARGIN = 128  # tokens that a cut within a word may change


def cut_unread_text(tokenizer: PreTrainedTokenizerBase, text: str, limit: int | None = None) -> str:
    """Return a part of `text` whose first `limit` tokens are those of the whole text.

    The limit is by default the tokenizer's own. To tokenize the whole text, and cut it then, takes a second a megabyte.
    If the tokenizer cuts at the left, the part is the end of the text. No more than `MOST_CHARACTERS` characters are
    read for each token that is wanted. Raises `ContextLengthExceeded` if those give fewer tokens, and the text goes on.
    """
    wanted = MARGIN + (limit or tokenizer.model_max_length)
    size, most = CHARACTERS * wanted, MOST_CHARACTERS * wanted
    while size < min(len(text), most):
        part = _cut_text(tokenizer, text, size)
        if len(tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"]) >= wanted:
            return part
        size *= 4
    if len(text) <= most:
        return text
    part = _cut_text(tokenizer, text, most)
    found = len(tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"])
    if found < wanted:
        raise ContextLengthExceeded(
            f"A text of {len(text)} characters has only {found} tokens in the {most} characters that are read of it."
            " Shorten its runs of blanks and its longest words."
        )
    return part


def _cut_text(tokenizer: PreTrainedTokenizerBase, text: str, size: int) -> str:
    return text[-size:] if tokenizer.truncation_side == "left" else text[:size]
