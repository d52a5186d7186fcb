"""Ids of rows: they sort by their time of creation, so that a range of time is a range of ids."""

from __future__ import annotations

import datetime
from uuid import UUID

import uuid_utils.compat

from inference import clock


def new_job_id() -> UUID:
    """A UUIDv7, whose time is the database's."""
    made = uuid_utils.compat.uuid7()
    return UUID(int=made.int + (int(off_s * 1000) << 80)) if (off_s := clock.off_s()) else made


def first_id_at(moment: datetime.datetime) -> UUID:
    """The smallest id that can be made at `moment`; every index ends with the id."""
    return UUID(int=(int(moment.timestamp() * 1000) << 80) | (7 << 76) | (2 << 62))
