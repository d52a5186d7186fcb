"""Makes a job of ours out of a body in another server's words, and errors that use these words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from api.errors.problems import ApiError
from inference.catalog import words
from inference.catalog.lookup import models, spec_of
from inference.catalog.neutral import OPENAI, OPENAI_IGNORED, Neutral, is_neutral, refusal
from inference.catalog.specs import ModelSpec
from inference.errors import InvalidInput
from inference.submission.submissions import Submission

PLACE = re.compile(r"inputs\[\d+\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectRequest:
    """A job that was asked for in the words of another server's clients."""

    submission: Submission
    words: Mapping[str, str]  # By what a message of ours begins with: what the client calls it.

    @contextlib.contextmanager
    def in_its_words(self) -> Iterator[None]:
        """Name an input or a parameter that is not valid as the client did."""
        try:
            yield
        except InvalidInput as error:
            raise type(error)(self.in_words(error.message), field=self.in_words(error.field)) from None

    def in_words(self, text: str) -> str:
        """Reword what a message of ours, or a field, begins with, and what follows the place of an input."""
        place, separator, rest = text.partition(": ")
        if separator and PLACE.fullmatch(place):
            return f"{self._named(place)}: {self._named(rest)}"
        return self._named(text)

    def _named(self, text: str) -> str:
        ours = next((ours for ours in self.words if text.startswith(ours)), "")
        return self.words[ours] + text[len(ours) :] if ours else text


def fields_of(document: Any) -> dict[str, Any]:
    """Return the fields of a body. What is null was not given: some clients send all the fields they know.

    Raises `InvalidInput`."""
    if not isinstance(document, dict):
        raise InvalidInput(f"The body must be a JSON object, not {words.type_of(document)}.", field="body")
    return {name: value for name, value in document.items() if value is not None}


def model_of(fields: Mapping[str, Any]) -> ModelSpec:
    """Return the model that a body names. Raises `InvalidInput`, `UnknownModel`."""
    name = fields.get("model")
    if not isinstance(name, str):
        raise InvalidInput("model: must be a name of GET /v1/models.", field="model")
    return spec_of(name)


def default_of(kind: str) -> ModelSpec:
    """Return the model that answers a kind of request which names none: the only one, or the one that is marked.

    Raises `ApiError` where there is none, or are several."""
    found = [spec for spec in models().values() if kind in spec.kinds]
    marked = [spec for spec in found if kind in spec.default_for] or found
    if len(marked) != 1:
        names = ", ".join(spec.name for spec in found)
        told = f'name one of {names}, or have one marked with default_for = ["{kind}"]'
        raise ApiError(f"model: {told if names else 'no model here answers this'}.")
    return marked[0]


def flag(fields: Mapping[str, Any], name: str, where: str = "", *, default: bool = False) -> bool:
    """Read true or false, which `where` stands before in an error. Raises `InvalidInput`."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InvalidInput(f"{where}{name}: must be true or false.", field=f"{where}{name}")
    return value


def refuse_others(
    fields: Mapping[str, Any],
    known: Collection[str],
    neutral: Neutral = OPENAI,
    ignored: Collection[str] = OPENAI_IGNORED,
    where: str = "",
) -> None:
    """Raise `InvalidInput` for a field that is not known, unless it is ignored, or asks for nothing.

    Args:
        neutral: By field, the values that ask for nothing.
        where: Stands before a field's name in an error.
    """
    for name, value in fields.items():
        if name in known or name in ignored or is_neutral(neutral, name, value):
            continue
        shown = f"{where}{words.name(name)}"
        if name not in neutral:
            raise InvalidInput(f"{shown}: unknown field; {words.hint(name, known)}", field=shown)
        raise InvalidInput(f"{shown}: {refusal(neutral, name)}", field=shown)
