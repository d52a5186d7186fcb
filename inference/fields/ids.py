"""The ids of rows, which sort by their time of creation, so that a range of time is a range of ids."""

from __future__ import annotations

import datetime
import string
from typing import TYPE_CHECKING, Any
from uuid import UUID

import uuid_utils.compat
from django.db.models import UUIDField
from django.db.models.lookups import UUIDEndsWith

from inference import clock

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models.sql.compiler import SQLCompiler


def make_row_id() -> UUID:
    """Return a UUIDv7 whose time is that of the database's clock.

    This holds after the host's clock was set back, too, when `uuid7` alone returns ids whose time is ahead.
    """
    made = uuid_utils.compat.uuid7()
    off_ms, now_ms = int(clock.get_offset_s() * 1000), int(clock.estimate_now_s() * 1000)
    if (made.int >> 80) + off_ms - now_ms > clock.AGREED_S * 1000:  # ahead; it is behind only if this thread paused
        off_ms = now_ms - (made.int >> 80)
    return UUID(int=made.int + (off_ms << 80)) if off_ms else made


def make_first_id(moment: datetime.datetime) -> UUID:
    """Return the smallest id that can be made at `moment`. Every index ends with the id."""
    return UUID(int=(int(moment.timestamp() * 1000) << 80) | (7 << 76) | (2 << 62))


def extract_creation_moment(row_id: UUID) -> datetime.datetime:
    return datetime.datetime.fromtimestamp((row_id.int >> 80) / 1000, datetime.UTC)


@UUIDField.register_lookup
class EndsWith(UUIDEndsWith):
    """The lookup of ids by their last hexadecimal digits.

    PostgreSQL would turn every id of a table into a text; comparing bytes costs half of that. SQLite stores texts, and
    would search every place of them for the digits.
    """

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        digits = str(self.rhs).replace("-", "")
        column, given = compiler.compile(self.lhs)
        return f"substr({column}, {-len(digits)}) = %s", [*given, digits]

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        digits = str(self.rhs)
        if not set(digits) <= set(string.hexdigits):
            return self.as_sql(compiler, connection)  # type: ignore[return-value]  # Django's stubs
        column, given = compiler.compile(self.lhs)
        half, end = digits[: len(digits) % 2], bytes.fromhex(digits[len(digits) % 2 :])
        sql = f"substring(uuid_send({column}) from {17 - len(end)}) = %s"
        values: list[Any] = [*given, end]
        if half:
            sql += f" AND get_byte(uuid_send({column}), {15 - len(end)}) & 15 = %s"
            values.append(int(half, 16))
        return f"({sql})", values
