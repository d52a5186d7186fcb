"""The parts that all dialects share: reading a body's fields and model, and errors in the client's own words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from api.errors.problems import ApiError
from inference.catalog.lookup import get_catalog, get_spec
from inference.catalog.neutral_values import CUT, OPENAI, OPENAI_IGNORED, Neutral, describe_refusal, is_neutral
from inference.catalog.specs import ModelSpec
from inference.errors import InvalidInput, UnknownModel, make_field_error
from inference.submission.submissions import Submission
from inference.values.error_phrases import json_type_of, suggest_name, truncate_name
from inference.values.priority import Priority

SERVICE_TIER = "service_tier"
ANY_MODEL = "default/not-specified"  # the value that infinity's client sends if no model is named
PRIORITIES_BY_TIER = {
    "auto": Priority.NORMAL,
    "default": Priority.NORMAL,
    "flex": Priority.LOW,
    "priority": Priority.HIGH,
}
TIERS: dict[int, str] = {priority: tier for tier, priority in PRIORITIES_BY_TIER.items()}  # of those that have one
LOW_FROM, LAST = 500, 999  # priorities of Cohere
MOST_PAIRS, LONGEST_NAME, LONGEST_VALUE = 16, 64, 512  # of metadata
# Fields of servers that share an address: these values ask for nothing where vectors or scores are asked for.
RETRIEVAL: Neutral = {
    **CUT, "embedding_types": (["float"],), "instruction": (), "modality": ("text",), "priority": (0,),
    "truncate": (True, "END"),
}  # fmt: skip
PLACE = re.compile(r"inputs\[(\d+)\]")
PLACES = re.compile(rf"{PLACE.pattern}(?: to {PLACE.pattern})?")  # of one input, or of those of a part of a list


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectRequest:
    """A job that was asked for in another server's dialect."""

    submission: Submission
    words: Mapping[str, str]  # the client's name, by the beginning of a message that it replaces
    is_single: bool = False  # True if the client sent one text, of which the job has a list

    @contextlib.contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raise each `InvalidInput` of the block again, with the client's name of the input or parameter."""
        try:
            yield
        except InvalidInput as error:
            raise type(error)(
                self.translate_field_names(error.message), field=self.translate_field_names(error.field)
            ) from None

    def translate_field_names(self, text: str) -> str:
        """Return a message or field of this service with the client's names.

        A name is replaced at the beginning, and after the place of an input, such as `inputs[3]: `. One text has no
        place.
        """
        place, separator, rest = text.partition(": ")
        if separator and PLACES.fullmatch(place):
            found = self._translate_beginning(rest)
            return found if self.is_single else f"{PLACE.sub(self.translate_place, place)}: {found}"
        return self.translate_place(whole) if (whole := PLACE.fullmatch(text)) else self._translate_beginning(text)

    def translate_place(self, place: re.Match[str]) -> str:
        """Return the client's name of the input of this number."""
        return self._translate_beginning(place[0])

    def _translate_beginning(self, text: str) -> str:
        return replace_beginning(text, self.words)


def replace_beginning(text: str, words: Mapping[str, str]) -> str:
    """Return a text with the first of the words that it begins with replaced."""
    ours = next((ours for ours in words if text.startswith(ours)), "")
    return words[ours] + text[len(ours) :] if ours else text


def read_non_null_fields(document: object) -> dict[str, Any]:
    """Return the fields of a body that are not null: some clients send all the fields they know.

    Raises `InvalidInput` if the body is not a JSON object.
    """
    if not isinstance(document, dict):
        raise InvalidInput(f"The body must be a JSON object, not {json_type_of(document)}.", field="body")
    return {name: value for name, value in document.items() if value is not None}


def rename_fields(given: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields by their own names. Raises `InvalidInput` if a field stands beside its other name."""
    for name, other in renamed.items():
        refuse_both_fields(given, name, other)
    return {renamed.get(name, name): value for name, value in given.items()}


def refuse_both_fields(given: Mapping[str, Any], name: str, other: str) -> None:
    """Raise `InvalidInput` if two fields that mean the same are given."""
    if name in given and other in given:
        raise make_field_error(name, f"is the same as {other}; send one of them.")


def find_model(fields: Mapping[str, Any], addressed: ModelSpec | None = None) -> ModelSpec:
    """Return the model that the address names, or else the one that the body names.

    Where the address names one, clients send any name in the body. Raises `InvalidInput` if that is another model of
    this service, or if no model is named, and `UnknownModel`.
    """
    name = fields.get("model")
    if addressed:
        if isinstance(name, str) and name != addressed.name and name in get_catalog():
            raise make_field_error("model", f"the address names {addressed.name!r}, and the body {name!r}.")
        return addressed
    if not isinstance(name, str):
        raise make_field_error("model", "must be a name of GET /v1/models.")
    return get_spec(name)


class NoDefaultModel(ApiError, UnknownModel):
    """Raised if a request names no model, and not exactly one is the default for it."""


def find_default_model(kind: str, missing: str = "no model here answers this") -> ModelSpec:
    """Return the model for a kind of request that names none: the only one, or the one that is marked.

    Raises `NoDefaultModel` if there are several, or if there is none, which `missing` says.
    """
    found = [spec for spec in get_catalog().values() if kind in spec.request_kinds]
    marked = [spec for spec in found if kind in spec.default_for] or found
    if len(marked) != 1:
        names = ", ".join(spec.name for spec in found)
        hint = f'name one of {names}, or have one marked with default_for = ["{kind}"]'
        raise NoDefaultModel(f"model: {hint if names else missing}.", field="model")
    return marked[0]


def find_model_or_default(fields: Mapping[str, Any], kind: str, addressed: ModelSpec | None) -> ModelSpec:
    """Return the model of `find_model`, or the default for this kind of request if none is named.

    Raises the errors of `find_model` and `find_default_model`.
    """
    is_unnamed = addressed is None and fields.get("model", ANY_MODEL) == ANY_MODEL
    return find_default_model(kind) if is_unnamed else find_model(fields, addressed)


def ask_for_all_labels(spec: ModelSpec) -> dict[str, int]:
    """Return the parameters of a model that classifies for as many labels as it allows."""
    most = spec.parameters["top_k"].max if "top_k" in spec.parameters else None
    return {"top_k": int(most)} if most else {}


def read_flag(fields: Mapping[str, Any], name: str, where: str = "", *, default: bool = False) -> bool:
    """Return a field that is true or false, or `default` if it is missing.

    `where` stands before the field's name in an error. Raises `InvalidInput`.
    """
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise make_field_error(f"{where}{name}", "must be true or false.")
    return value


def read_truncate(fields: Mapping[str, Any]) -> dict[str, bool]:
    """Return the parameter by which what is too long is refused and not cut, if a body asks for that.

    Raises `InvalidInput`.
    """
    if is_neutral(RETRIEVAL, "truncate", fields.get("truncate")):
        return {}
    return {"truncate": read_flag(fields, "truncate")}


def read_priority(fields: Mapping[str, Any]) -> Priority:
    """Return the priority that OpenAI's `service_tier` asks for. Raises `InvalidInput`."""
    tier = fields.get(SERVICE_TIER, "auto")
    if not isinstance(tier, str) or tier not in PRIORITIES_BY_TIER:
        raise make_field_error(SERVICE_TIER, f"must be one of {', '.join(PRIORITIES_BY_TIER)}.")
    return PRIORITIES_BY_TIER[tier]


def read_cohere_priority(fields: Mapping[str, Any]) -> Priority:
    """Return the priority that Cohere's number asks for: 0 is first, 999 last. Raises `InvalidInput`."""
    value = fields.get("priority", 0)
    if type(value) is not int or not 0 <= value <= LAST:
        raise make_field_error("priority", f"must be a whole number from 0, which is first, to {LAST}.")
    return Priority.LOW if value >= LOW_FROM else Priority.NORMAL


def read_metadata(fields: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the texts that a client keeps with an object, or None if there are none. Raises `InvalidInput`."""
    metadata: Any = fields.get("metadata")
    if metadata is None:
        return None
    is_sound = (
        isinstance(metadata, dict)
        and len(metadata) <= MOST_PAIRS
        and all(len(name) <= LONGEST_NAME for name in metadata)
        and all(isinstance(value, str) and len(value) <= LONGEST_VALUE for value in metadata.values())
    )
    if not is_sound:
        longest = f"names of {LONGEST_NAME} and values of {LONGEST_VALUE} characters at most"
        raise make_field_error("metadata", f"must be an object of at most {MOST_PAIRS} texts, with {longest}.")
    return dict(metadata)


def refuse_unknown_fields(
    fields: Mapping[str, Any],
    known: Collection[str],
    neutral: Neutral = OPENAI,
    ignored: Collection[str] = OPENAI_IGNORED,
    where: str = "",
) -> None:
    """Raise `InvalidInput` for a field that is not known, unless it is ignored or its value asks for nothing.

    `neutral` holds the values that ask for nothing, by field. `where` stands before a field's name in an error.
    """
    for name, value in fields.items():
        if name in known or name in ignored or is_neutral(neutral, name, value):
            continue
        shown = f"{where}{truncate_name(name)}"
        if name not in neutral:
            raise make_field_error(shown, f"unknown field; {suggest_name(name, known)}")
        raise make_field_error(shown, describe_refusal(neutral, name))


def refuse_unserved_fields(where: str, fields: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise `InvalidInput` for a field of the object at `where` that is not known and is not empty."""
    if name := next((name for name, value in fields.items() if value and name not in known), None):
        raise make_field_error(f"{where}.{truncate_name(name)}", "is not served here; leave it out.")
