"""What the database does for one answer."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from django.db import connection
from django.db.backends.utils import CursorWrapper

FETCHES = ("fetchone", "fetchmany", "fetchall")


@dataclass(slots=True)
class Watch:
    statements: list[tuple[float, str]] = field(default_factory=list)  # seconds, SQL

    @property
    def total_s(self) -> float:
        return sum(took_s for took_s, _ in self.statements)

    @property
    def slowest(self) -> tuple[float, str]:
        return max(self.statements, default=(0.0, ""))

    def execute(self, execute: Callable[..., Any], sql: str, *given: Any) -> Any:
        self.statements.append((0.0, sql))
        with self.timed():
            return execute(sql, *given)

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """More of the last statement: SQLite looks for each row as it is asked for."""
        began = time.perf_counter()
        yield
        before_s, sql = self.statements[-1]
        self.statements[-1] = (before_s + time.perf_counter() - began, sql)

    def fetch(self, fetch: Callable[..., Any], *given: Any) -> Any:
        with self.timed():
            return fetch(*given)


@contextlib.contextmanager
def watching() -> Iterator[Watch]:
    watch = Watch()
    found: Any = CursorWrapper.__getattr__

    def attribute(cursor: CursorWrapper, name: str) -> Any:
        value = found(cursor, name)
        return functools.partial(watch.fetch, value) if name in FETCHES else value

    def rows(cursor: CursorWrapper) -> Iterator[Any]:
        while (row := cursor.fetchone()) is not None:
            yield row

    with (
        patch.object(CursorWrapper, "__getattr__", attribute),
        patch.object(CursorWrapper, "__iter__", rows),
        connection.execute_wrapper(watch.execute),
    ):
        yield watch
