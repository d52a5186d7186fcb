"""Fills, asks, and tells what each answer took of the database."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import setup_databases, setup_test_environment, teardown_databases
from tqdm import tqdm

from api.models import ApiKey
from benchmarks.admin.fill import CATALOG, Month
from benchmarks.admin.operations import Operation, Operations
from benchmarks.admin.stopwatch import watching
from benchmarks.tables import aligned, between_marks, machine, markdown_table
from inference.status.workers import REMEMBERED_S

__all__ = ["CATALOG", "run"]

DOCS = Path(__file__).parents[2] / "docs" / "measurements"
BEGIN, END = "<!-- admin: python -m benchmarks.admin --publish -->", "<!-- end of admin -->"
LIMIT_MS, FIRST_PAGE, FIRST_PAGE_MS = 300, "first page", 100
SHOWN_MS = 20  # in the table of the page: what takes longer on one of the databases
TIMES = 3  # the best counts: what else the machine does is not the database's
LONGEST_SQL = 2000

Measured = dict[str, Any]


def run(jobs: int, waiting: int, *, publish: bool) -> None:
    setup_test_environment()
    databases = setup_databases(verbosity=0, interactive=False)
    try:
        month = Month(jobs, waiting)
        hurry()
        month.fill()
        settle()
        operator = User.objects.create_superuser("operator")
        _, key = ApiKey.objects.issue_key(owner=operator)
        client = Client(headers={"Authorization": f"Bearer {key}"})  # for /metrics
        client.force_login(operator)
        operations = list(Operations(client, month))
        results = [measured(operation) for operation in tqdm(operations, unit="page", dynamic_ncols=True)]
    finally:
        teardown_databases(databases, verbosity=0)
    print(aligned([("", "pages", "queries", "ms"), *table(results)]))
    for result in over(results):
        print(f"over the limit: {result['ms']:.0f} ms, {result['name']}")
        print(f"  {result['slowest_ms']:.0f} ms: {result['slowest']}")
    if publish:
        write({"database": connection.vendor, "jobs": jobs, "waiting": waiting, "machine": machine(), "asked": results})


def hurry() -> None:
    """Until this connection is closed."""
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA synchronous=OFF")
            cursor.execute("PRAGMA cache_size=-500000")


def settle() -> None:
    """As the server does by itself, soon after so many rows came."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE")
    connection.close()


def measured(operation: Operation) -> Measured:
    """The best of some times, each of a process that remembers nothing."""
    watches = []
    for _ in range(TIMES):
        time.sleep(REMEMBERED_S)
        with watching() as watch:
            operation.do()
        watches.append(watch)
    best = min(watches, key=lambda watch: watch.total_s)
    took_s, sql = best.slowest
    return {
        "group": operation.group, "name": operation.name,
        "queries": len(best.statements), "ms": round(1000 * best.total_s, 1),
        "slowest_ms": round(1000 * took_s, 1), "slowest": re.sub("SELECT .*? FROM", "SELECT … FROM", sql)[:LONGEST_SQL],
    }  # fmt: skip


def over(results: Sequence[Measured]) -> Iterator[Measured]:
    for result in sorted(results, key=lambda result: -result["ms"]):
        if result["ms"] > (FIRST_PAGE_MS if result["group"] == FIRST_PAGE else LIMIT_MS):
            yield result


def table(results: Sequence[Measured]) -> Iterator[tuple[str, ...]]:
    """Of each group the most."""
    for group in dict.fromkeys(result["group"] for result in results):
        same = [result for result in results if result["group"] == group]
        most = max(same, key=lambda result: result["ms"])
        yield group, str(len(same)), str(max(result["queries"] for result in same)), f"{most['ms']:.1f}"


def write(found: Mapping[str, Any]) -> None:
    """Into docs/, beside what was measured on the other database."""
    file = DOCS / "benchmarks-admin.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    known[found["database"]] = found
    file.write_text(json.dumps(known, indent=1) + "\n")
    between_marks(DOCS / "benchmarks.md", "\n".join(as_markdown(known)), BEGIN, END)


def as_markdown(known: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    names = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
    there = [name for name in names if name in known]
    tables = {name: {line[0]: line for line in table(known[name]["asked"])} for name in there}
    lines = [
        [*line[:3], *(tables[name][group][3] if group in tables[name] else "" for name in there)]
        for group, line in tables[there[0]].items()
    ]
    most = {line[0]: max(float(ms) for ms in line[3:] if ms) for line in lines}
    shown = [line for line in lines if most[line[0]] > SHOWN_MS]
    yield from markdown_table(["", "pages", "queries, at most", *(f"{names[name]}, ms" for name in there)], shown)
    yield ""
    yield f"The other {len(lines) - len(shown)} kinds take at most {SHOWN_MS} ms."
    yield ""
    for name in there:
        where = ", ".join(f"{what} {value}" for what, value in known[name]["machine"].items())
        yield f"{names[name]}: {known[name]['jobs']:,} finished jobs, {known[name]['waiting']:,} that wait; {where}."
