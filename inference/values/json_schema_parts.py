"""The parts of a JSON schema that are schemas themselves.

They stand at the keywords below. A property may have the name of any keyword, and a value that a schema names, such as
a default, may look like a schema. What stands at a keyword that is not known is read as a schema, as references may
lead to it.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

BY_NAME = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")
APPLICATORS = (  # keywords with schemas: by name, one, or a list
    *BY_NAME, "additionalItems", "additionalProperties", "allOf", "anyOf", "contains", "else", "if", "items", "not",
    "oneOf", "prefixItems", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
# Keywords that allow and forbid nothing.
ANNOTATIONS = ("$comment", "default", "description", "example", "examples", "title")
DATA = ("const", "default", "enum", "example", "examples")  # keywords whose values are no schemas


def map_schema_parts(schema: Mapping[str, Any], change: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Return a schema with `change(keyword, part)` in place of each part that is an object at one of its keywords."""
    return {keyword: _map_value(keyword, value, change) for keyword, value in schema.items()}


def _map_value(keyword: str, value: Any, change: Callable[[str, Any], Any]) -> Any:
    if keyword in DATA:
        return value
    if isinstance(value, list):
        return [change(keyword, part) if isinstance(part, dict) else part for part in value]
    if not isinstance(value, dict):
        return value
    if keyword in BY_NAME:
        return {name: change(keyword, part) if isinstance(part, dict) else part for name, part in value.items()}
    return change(keyword, value)


def iterate_schemas(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and all schemas within it."""
    schemas = [schema]
    while schemas:
        yield (found := schemas.pop())
        map_schema_parts(found, lambda _, part: schemas.append(part))


def drop_annotations(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without what only describes it and its parts.

    What stands at a keyword that is not known is left as it is, as it may be of definitions with such names.
    """
    parts = map_schema_parts(schema, lambda keyword, part: drop_annotations(part) if keyword in APPLICATORS else part)
    return {keyword: value for keyword, value in parts.items() if keyword not in ANNOTATIONS}
