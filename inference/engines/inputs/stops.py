"""What a request asks a generated text to end at."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inference.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Stops:
    """Holds what a request asks a text to end at."""

    texts: tuple[str, ...]
    tokens: frozenset[int]  # special ones, which no text shows


def read_stops(tokenizer: Any, asked: Sequence[str]) -> Stops:
    """Tell special tokens from texts. Raises `InvalidInput` for a stop that is in part a special token."""
    special = special_tokens(tokenizer) if asked else {}
    tokens = set()
    for stop in asked:
        if (number := special.get(stop.strip())) is not None:
            tokens.add(number)
        elif part := next((name for name in special if name and name in stop), None):
            raise InvalidInput(
                f"stop: {stop!r} holds the special token {part!r} with other text. A special token ends a text by"
                f" itself: send {part!r} alone.",
                field="parameters.stop",
            )
    return Stops(texts=tuple(asked), tokens=frozenset(tokens))


def special_tokens(tokenizer: Any) -> dict[str, int]:
    """Find the tokens that are left out of texts, by what they are written as."""
    return {str(token): number for number, token in tokenizer.added_tokens_decoder.items() if token.special}


def first_stop(text: str, stops: Sequence[str], start: int = 0) -> int | None:
    """The place of the first stop string in a text that has none up to `start`."""
    places = [text.find(stop, max(0, start - len(stop) + 1)) for stop in stops]
    return min((place for place in places if place >= 0), default=None)
