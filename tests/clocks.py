"""A database whose clock is set while a test runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from django.db import connection
from django.db.models.functions import Now

from inference import clock


@contextlib.contextmanager
def database_clock(seconds: float) -> Iterator[None]:
    """Let the database's clock show so many seconds more, in `Now()` and to `clock.read_database_clock`."""
    template = {
        "postgresql": f"(STATEMENT_TIMESTAMP() + interval '{seconds} seconds')",
        "sqlite": f"STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f', 'NOW', '{seconds:+} seconds')",
    }[connection.vendor]

    def as_vendor(self: Now, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template=template, **context)

    query = f"{clock._SQL[connection.vendor]} + {seconds}"  # noqa: SLF001 - of the one module that asks
    with patch.object(Now, f"as_{connection.vendor}", as_vendor), patch.dict(clock._SQL, {connection.vendor: query}):  # noqa: SLF001
        yield
