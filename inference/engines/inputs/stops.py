"""The stops of a request: the strings and tokens at which a generated text ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inference.errors import InvalidInput

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class Stops:
    """The stops that a request asks for."""

    texts: tuple[str, ...]
    tokens: frozenset[int]  # special tokens, which no text shows


def read_stops(tokenizer: PreTrainedTokenizerBase, stops: Sequence[str]) -> Stops:
    """Find the special tokens among the stops. Raises `InvalidInput` for a stop that is in part a special token."""
    special = read_special_tokens(tokenizer) if stops else {}
    tokens = set()
    for stop in stops:
        if (number := special.get(stop.strip())) is not None:
            tokens.add(number)
        elif part := next((name for name in special if name and name in stop), None):
            raise InvalidInput(
                f"stop: {stop!r} holds the special token {part!r} with other text. A special token ends a text by"
                f" itself: send {part!r} alone.",
                field="parameters.stop",
            )
    return Stops(texts=tuple(stops), tokens=frozenset(tokens))


def read_special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Return the number of each special token by its string. These tokens are left out of texts."""
    return {str(token): number for number, token in tokenizer.added_tokens_decoder.items() if token.special}


def list_end_tokens(token: int | list[int] | None) -> list[int]:
    """Return the tokens that end a text, which a generation config has as a list, as a number or not at all."""
    if token is None:
        return []
    return token if isinstance(token, list) else [token]


def find_first_stop(text: str, stops: Sequence[str], start: int = 0) -> int | None:
    """Return the index of the first stop string, or None. The text must have no stop string up to `start`."""
    places = [text.find(stop, max(0, start - len(stop) + 1)) for stop in stops]
    return min((place for place in places if place >= 0), default=None)
