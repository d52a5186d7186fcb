"""A database for each stack, of the kind that the tests run on: a copy of an empty one with all tables."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import dj_database_url
from django.conf import settings
from django.core.management import call_command
from django.db import connection, connections

TEMPLATE = "stack-template"


def create(alias: str, folder: Path) -> str:
    """Make it, known to Django here as `alias`; returns its DATABASE_URL. A file lies in `folder`."""
    if connection.vendor == "sqlite":
        file = folder / "db.sqlite3"
        shutil.copy(_sqlite_template(), file)
        _add(alias, _like_default(str(file)))
        return f"sqlite:///{file}"
    _administer(f'CREATE DATABASE "{alias}" TEMPLATE "{_postgres_template()}"')
    _add(alias, _like_default(alias))
    return _url(alias)


def make_template() -> None:
    """Make the empty database with all tables now: processes that are forked from this one share it."""
    _sqlite_template() if connection.vendor == "sqlite" else _postgres_template()


def attach(alias: str, url: str) -> None:
    """Make a database that somebody else runs known as `alias`, with all tables."""
    _add(alias, {**dj_database_url.parse(url)})
    _migrate(alias)


def drop(alias: str) -> None:
    """Forget the database, if it was made: what kept a stack from starting is the error to see."""
    if alias not in connections.settings:
        return
    connections[alias].close()
    if connections[alias].vendor == "postgresql" and connections[alias].settings_dict["NAME"] == alias:
        _administer(f'DROP DATABASE IF EXISTS "{alias}" WITH (FORCE)')
    del connections[alias], connections.settings[alias]


def _add(alias: str, options: dict[str, Any]) -> None:
    connections.settings[alias] = options
    connections.configure_settings(connections.settings)


def _like_default(name: str) -> dict[str, Any]:
    return {**settings.DATABASES["default"], "NAME": name}


def _migrate(alias: str) -> None:
    call_command("migrate", database=alias, verbosity=0, interactive=False)
    connections[alias].close()


@functools.cache
def _sqlite_template() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="stack-template-")
    atexit.register(folder.cleanup)
    file = Path(folder.name) / "db.sqlite3"
    _add(TEMPLATE, _like_default(str(file)))
    _migrate(TEMPLATE)
    return file


@functools.cache
def _postgres_template() -> str:
    """Of this process: those that test beside each other have databases of other names."""
    name = f"{TEMPLATE}-{connection.settings_dict['NAME']}"
    _administer(f'DROP DATABASE IF EXISTS "{name}"')
    _administer(f'CREATE DATABASE "{name}"')
    _add(TEMPLATE, _like_default(name))
    _migrate(TEMPLATE)
    return name


def _administer(statement: str) -> None:
    """Run a statement that no transaction may hold, beside the connection that the test uses."""
    beside = connection.copy("administration")
    with beside.cursor() as cursor:
        cursor.execute(statement)
    beside.close()


def _url(alias: str) -> str:
    found: Mapping[str, Any] = connections.settings[alias]
    user, password, host = (quote(str(found[key]), safe="") for key in ("USER", "PASSWORD", "HOST"))
    port = f":{found['PORT']}" if found["PORT"] else ""
    return f"postgres://{user}:{password}@{host}{port}/{found['NAME']}"
