"""Specs of the parameters that a request may have, and of an input, as `ParameterSpec`.

A value is checked twice: on arrival and in the child process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from inference.errors import InvalidInput
from inference.values.error_phrases import describe_value, suggest_name, truncate_name

MAX_TEXT = 10_000  # characters of a string, where its spec sets no limit
MAX_ITEMS = 1000  # items of an array, where its spec sets no limit

TYPES: dict[str, tuple[str, tuple[type, ...]]] = {  # by name: in words, and in Python
    "integer": ("a whole number", (int,)), "number": ("a number", (int, float)), "boolean": ("true or false", (bool,)),
    "string": ("a string", (str,)), "array": ("an array", (list,)), "object": ("an object", (dict,)),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSpec:
    """One request parameter that the model allows, with its bounds."""

    type: str  # a key of TYPES
    min: float | None = None
    max: float | None = None
    min_length: int | None = None  # characters of a string
    max_length: int | None = None
    items: str | None = None  # type of an array's items
    min_items: int | None = None
    max_items: int | None = None
    choices: tuple[Any, ...] | None = None
    default: Any = None
    required: bool = False


def is_of_type(value: object, kind: str) -> bool:
    """Return True if a JSON value has the type that a `ParameterSpec` names; a boolean is not a number."""
    return isinstance(value, TYPES[kind][1]) and isinstance(value, bool) == (kind == "boolean")


def parse_parameter_spec(name: str, table: object) -> ParameterSpec:
    """Return the spec of a parameter from its table in models.toml.

    Raises `ValueError`, whose message has what would be right.
    """
    if not isinstance(table, dict) or table.get("type") not in tuple(TYPES):  # a list has no hash
        raise ValueError(f'parameter {name} needs a type, one of {", ".join(TYPES)}, as in {{ type = "integer" }}')
    known = [field.name for field in fields(ParameterSpec)]
    for unknown in table.keys() - set(known):
        raise ValueError(f"parameter {name}: unknown key {unknown!r}; known keys are {', '.join(known)}")
    for key, value in table.items():
        if key in _KEYS and not _KEYS[key][0](table, value):
            raise ValueError(f"parameter {name}: {key} {_KEYS[key][1]}")
    if table.get("min", 0) > table.get("max", math.inf):
        raise ValueError(f"parameter {name}: min is above max")
    spec = ParameterSpec(**table | {"choices": tuple(table["choices"]) if "choices" in table else None})
    return spec if spec.default is None else replace(spec, default=_check_default(name, spec))


def _check_default(name: str, spec: ParameterSpec) -> Any:
    if not is_of_type(spec.default, spec.type):
        raise ValueError(f"parameter {name}: default {spec.default!r} is not of type {spec.type}")
    try:
        return resolve_parameters({name: spec}, {name: spec.default})[name]
    except InvalidInput as error:
        raise ValueError(f"the default is not allowed: {error.message.rstrip('.')}") from error


def _is_number_bound(table: dict[str, Any], value: object) -> bool:
    return table["type"] in ("integer", "number") and is_of_type(value, "number")


def _is_count(table: dict[str, Any], value: Any) -> bool:
    return is_of_type(value, "integer") and value >= 0


_KEYS: dict[str, tuple[Callable[[dict[str, Any], Any], bool], str]] = {
    "min": (_is_number_bound, "must be a number and is for integer and number only"),
    "max": (_is_number_bound, "must be a number and is for integer and number only"),
    "min_length": (_is_count, "must be a whole number from 0"),
    "max_length": (_is_count, "must be a whole number from 0"),
    "min_items": (_is_count, "must be a whole number from 0"),
    "max_items": (_is_count, "must be a whole number from 0"),
    "items": (lambda table, value: value in tuple(TYPES), f"must be one of {', '.join(TYPES)}"),
    "choices": (lambda table, value: isinstance(value, list) and bool(value), "must be a list of what is allowed"),
    "required": (lambda table, value: isinstance(value, bool), "must be true or false"),
}


def resolve_parameters(specs: Mapping[str, ParameterSpec], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters with their defaults, in the order of `specs`.

    A null counts as not given. Raises `InvalidInput`.
    """
    parameters = {name: value for name, value in parameters.items() if value is not None}
    if unknown := next((name for name in parameters if name not in specs), None):
        raise _make_parameter_error(
            f"parameters.{truncate_name(unknown)}", f"unknown parameter; {_suggest_parameter(unknown, specs)}"
        )
    values = {}
    for name, spec in specs.items():
        if name in parameters:
            values[name] = check_parameter(f"parameters.{name}", spec, parameters[name])
        elif spec.required:
            raise _make_parameter_error(f"parameters.{name}", "is required.")
        elif spec.default is not None:
            values[name] = spec.default
    return values


def _suggest_parameter(name: str, specs: Mapping[str, ParameterSpec]) -> str:
    return suggest_name(name, specs) if specs else "this model takes none."


def is_value_allowed(spec: ParameterSpec, value: object) -> bool:
    """Return True if `spec` allows `value`."""
    try:
        check_parameter("", spec, value)
    except InvalidInput:
        return False
    return True


def check_parameter(path: str, spec: ParameterSpec, value: Any) -> Any:
    """Return `value` if `spec` allows it; raise `InvalidInput`, which names `path`, if it does not.

    A number is returned as a float, since models refuse a temperature of 2, but not of 2.0.
    """
    if not is_of_type(value, spec.type):
        raise _make_parameter_error(path, f"must be {TYPES[spec.type][0]}, not {describe_value(value)}.")
    if spec.choices is not None and value not in spec.choices:
        one_of = "one of " if len(spec.choices) > 1 else ""
        allowed = ", ".join(map(describe_value, spec.choices))
        raise _make_parameter_error(path, f"must be {one_of}{allowed}, not {describe_value(value)}.")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        _check_number(path, spec, value)
    elif isinstance(value, str):
        _check_size(path, "characters", len(value), spec.min_length or 0, spec.max_length or MAX_TEXT)
    elif isinstance(value, list):
        _check_array(path, spec, value)
    return float(value) if spec.type == "number" else value


def _check_number(path: str, spec: ParameterSpec, value: float) -> None:
    low = -math.inf if spec.min is None else spec.min
    high = math.inf if spec.max is None else spec.max
    if not math.isfinite(value) or not low <= value <= high:
        up_to = "upwards" if high == math.inf else f"to {high:g}"
        raise _make_parameter_error(path, f"must be from {low:g} {up_to}, not {value!r}.")


def _check_array(path: str, spec: ParameterSpec, value: list[Any]) -> None:
    _check_size(path, "items", len(value), spec.min_items or 0, spec.max_items or MAX_ITEMS)
    for index, item in enumerate(value):
        if spec.items and not is_of_type(item, spec.items):
            raise _make_parameter_error(
                f"{path}[{index}]", f"must be {TYPES[spec.items][0]}, not {describe_value(item)}."
            )
        if isinstance(item, str):
            _check_size(f"{path}[{index}]", "characters", len(item), spec.min_length or 0, spec.max_length or MAX_TEXT)


def _check_size(path: str, what: str, size: int, low: int, high: int) -> None:
    if not low <= size <= high:
        raise _make_parameter_error(path, f"must have from {low} to {high} {what}, not {size}.")


def _make_parameter_error(path: str, message: str) -> InvalidInput:
    return InvalidInput(f"{path}: {message}", field=path)
