"""Strict fields: JSON has types, so `"7"` is not a number and `1.0` is not a whole number."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import islice
from typing import Any

from django.core.validators import ProhibitNullCharactersValidator
from drf_spectacular.drainage import set_override
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.fields import empty
from rest_framework.validators import ProhibitSurrogateCharactersValidator

from inference.values.error_phrases import json_type_of, suggest_name, truncate_name

LOOKED_FOR_BEFORE = (ProhibitNullCharactersValidator, ProhibitSurrogateCharactersValidator)
MAX_UNKNOWN_SHOWN = 3  # most unknown fields of one body that the answer names


class StrictField(serializers.Field[Any, Any, Any, Any]):
    """A JSON value of one of `types`. The contents of an object or an array are checked elsewhere."""

    types: tuple[type, ...] = ()
    what = ""

    def to_internal_value(self, data: object) -> Any:
        if type(data) not in self.types:
            raise serializers.ValidationError(f"must be {self.what}, not {json_type_of(data)}.")
        return data


class StrictString(StrictField, serializers.CharField):
    types, what = (str,), "a string"

    def __init__(self, **options: Any) -> None:
        super().__init__(trim_whitespace=False, **options)
        # These look for what no parsed body holds, with a call for each of up to ten million characters.
        self.validators = [each for each in self.validators if not isinstance(each, LOOKED_FOR_BEFORE)]


class StrictNumber(StrictField, serializers.FloatField):
    types, what = (int, float), "a number"


class Seconds(StrictNumber):
    """A number of seconds within bounds, both of which are in the error message."""

    def __init__(self, least: float, most: float, **options: Any) -> None:
        bounds = f"must be from {least:g} to {most:.0f} seconds."
        messages: dict[str, Any] = {"min_value": bounds, "max_value": bounds}
        super().__init__(min_value=least, max_value=most, error_messages=messages, **options)


@extend_schema_field({"type": "object", "additionalProperties": True})
class StrictObject(StrictField):
    types, what = (dict,), "an object"


@extend_schema_field({"type": "array", "items": {}, "minItems": 1})
class StrictArray(StrictField):
    types, what = (list,), "an array"


@extend_schema_field({"type": "boolean"})
class StrictFlag(StrictField):
    types, what = (bool,), "true or false"


@extend_schema_field({"type": ["string", "number", "boolean", "object", "array"], "items": {}})
class Anything(StrictField):
    """Any JSON value but null."""

    types = (str, int, float, bool, dict, list)


class Choice(serializers.Field[Any, Any, Any, Any]):
    """One of a few words, each of which stands for a value of this service."""

    def __init__(self, words: Mapping[str, Any], **options: Any) -> None:
        self.words = dict(words)
        super().__init__(**options)
        set_override(self, "field", {"type": "string", "enum": list(words)})

    def to_internal_value(self, data: object) -> Any:
        if not isinstance(data, str) or data not in self.words:
            raise serializers.ValidationError(f"must be one of {', '.join(self.words)}.")
        return self.words[data]


class Body(serializers.Serializer[None]):
    """A request's body: unknown fields are refused by name, and a field that is null is not given.

    One instance of each class serves all requests. `run_validation` keeps no state, and making the fields anew for
    every request costs more than the validation.
    """

    elsewhere: Mapping[str, str] = {}  # where a field that is not taken here belongs, by its name

    def run_validation(self, data: object = empty) -> Any:
        """Validate the fields only: a body has no validators beside theirs."""
        return self.to_internal_value(data)

    def to_internal_value(self, data: object) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise serializers.ValidationError(f"The body must be a JSON object, not {json_type_of(data)}.")
        unknown = (name for name, value in data.items() if name not in self.fields_by_name and value is not None)
        if errors := {
            truncate_name(name): self._describe_unknown_field(name) for name in islice(unknown, MAX_UNKNOWN_SHOWN)
        }:
            raise serializers.ValidationError(errors)
        values: dict[str, Any] = {}
        wrong: dict[str, Any] = {}
        for name, field in self.fields_by_name.items():
            value = data.get(name, empty)
            try:
                values[name] = field.run_validation(empty if value is None and not field.required else value)
            except serializers.SkipField:
                pass
            except serializers.ValidationError as error:
                wrong[name] = error.detail
        if wrong:
            raise serializers.ValidationError(wrong)
        return values

    @cached_property
    def fields_by_name(self) -> dict[str, Any]:
        """The fields by name, made once."""
        return dict(self.fields)

    @property
    def accepted_names(self) -> list[str]:
        return list(self.fields_by_name)

    def _describe_unknown_field(self, name: str) -> str:
        return f"unknown field; {self.elsewhere.get(name) or suggest_name(name, self.accepted_names)}"
