"""A JSONField whose values are documents: typed objects instead of dictionaries."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from inference.fields.worker_documents import Document

T = TypeVar("T")
TypedJSONColumn: TypeAlias = "models.Field[Mapping[str, object] | Document | None, T]"  # it takes JSON, too


class DocumentEncoder(json.JSONEncoder):
    def default(self, o: Any) -> Any:
        return o.write() if isinstance(o, Document) else super().default(o)


class TypedJSONField(models.JSONField):
    """A field that stores JSON objects, of which `read` makes documents; NULL is read as an empty object.

    A migration sees a `django.db.models.JSONField`, which needs no `read`.
    """

    def __init__(self, read: Callable[[Any], Any] = dict, **kwargs: Any) -> None:
        super().__init__(**{"default": partial(read, {}), **kwargs})
        self.encoder, self.read = DocumentEncoder, read

    def from_db_value(self, value: Any, expression: Any, connection: BaseDatabaseWrapper) -> Any:
        return self.read(super().from_db_value(value, expression, connection) or {})

    def value_to_string(self, obj: models.Model) -> Any:
        """Return the JSON value, as `dumpdata` writes it."""
        return json.loads(json.dumps(self.value_from_object(obj), cls=DocumentEncoder))

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        del kwargs["encoder"]
        return name, "django.db.models.JSONField", args, {**kwargs, "default": dict}
