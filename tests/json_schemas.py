"""Random JSON schemas, of what clients send: objects, arrays, texts, numbers, choices and definitions."""

from __future__ import annotations

import random
from typing import Any

NAMES = ("name", "n", "colour", "is_open", "tags", "due-at", "ä b")


def make_schema(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    """Return an object's schema, some of whose values refer to a definition."""
    defined = make_value(rng, 1)
    schema = make_object(rng, depth)
    schema["properties"]["shared"] = {"$ref": "#/$defs/shared"}
    return {**schema, "$defs": {"shared": defined}}


def make_object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randint(1, 3))
    return {
        "type": "object",
        "properties": {name: make_value(rng, depth - 1) for name in names},
        "required": rng.sample(names, rng.randint(0, len(names))),
        "additionalProperties": False,
    }


def make_value(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randint(-50, 50)
    plain: list[dict[str, Any]] = [
        {"type": "boolean"},
        {"type": "null"},
        {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 500)},
        {"type": "number", "minimum": low, "maximum": low + 1},
        {"type": "string", "maxLength": rng.randint(0, 6)},
        {"type": "string", "pattern": "^[a-c]{1,3}(-[0-9])?$"},
        {"type": "string", "format": rng.choice(("date", "time", "uuid", "ipv4"))},
        {"enum": rng.sample(["red", "blue", 7, None, True, "\u2713"], 3)},
        {"const": rng.choice(["x", 1, False])},
        {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "integer", "minimum": 0, "maximum": 9}]},
        {"type": ["string", "null"], "maxLength": 4},
    ]
    if depth > 0:
        plain += [
            make_object(rng, depth),
            {"type": "array", "items": make_value(rng, depth - 1), "minItems": rng.randint(0, 2), "maxItems": 3},
            {"type": "array", "prefixItems": [make_value(rng, 0), make_value(rng, 0)], "items": False, "minItems": 2},
        ]
    return rng.choice(plain)
