"""A database for each stack, of the kind that the tests run on: a copy of an empty one with all tables."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import dj_database_url
from django.conf import settings
from django.core.management import call_command
from django.db import connection, connections
from django.db.migrations.executor import MigrationExecutor

from tests.once import made_once
from tests.postgres import Postgres

TEMPLATE = "stack-template"


def create(alias: str, folder: Path) -> str:
    """Make it, known to Django here as `alias`; returns its DATABASE_URL. A file lies in `folder`."""
    if connection.vendor == "sqlite":
        file = folder / "db.sqlite3"
        shutil.copy(sqlite_template(), file)
        _add(alias, _like_default(str(file)))
        return f"sqlite:///{file}"
    _administer(f'CREATE DATABASE "{alias}" TEMPLATE "{_postgres_template()}"')
    _add(alias, _like_default(alias))
    return _url(alias)


def make_template() -> None:
    """Make the empty database with all tables now: processes that are forked from this one share it."""
    sqlite_template() if connection.vendor == "sqlite" else _postgres_template()


def sqlite_template() -> Path:
    """Return the file of an empty database with all tables, which is to be copied."""
    return made_once("template.sqlite3", _make_sqlite)


def prepare(file: Path) -> None:
    """Lay an empty database at `file` where the tests run on SQLite and there is none: who starts on it makes none."""
    if connection.vendor == "sqlite" and not file.exists():
        shutil.copy(sqlite_template(), file)


def postgres() -> Postgres:
    """Return a server that is to be started, whose database has all tables."""
    return Postgres(made_once("postgres", _make_postgres))


def attach(alias: str, url: str) -> None:
    """Make a database that somebody else runs known as `alias`, with all tables."""
    _add(alias, {**dj_database_url.parse(url)})
    executor = MigrationExecutor(connections[alias])
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        _migrate(alias)
    connections[alias].close()


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


def _make_sqlite(file: Path) -> None:
    _add(TEMPLATE, _like_default(str(file)))
    _migrate(TEMPLATE)
    drop(TEMPLATE)


def _make_postgres(data: Path) -> None:
    with Postgres() as server:
        attach(TEMPLATE, server.url())
        drop(TEMPLATE)
        server.stop()
        server.copy(server.data, data)


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
