"""The command `manage.py status`, which shows the admin's first page in a terminal.

Its exit status is 1 while something needs attention.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.db import DatabaseError, InterfaceError, connection

from inference import clock
from inference.catalog.lookup import get_catalog_or_empty
from inference.figures import sample, series, tallies
from inference.figures.tallies import Tally
from inference.management.command_errors import show_errors_as_sentences
from inference.models import TERMINAL
from inference.status import attention, workers
from inference.telemetry.control_characters import escape_line

CLEAR = "\x1b[H\x1b[2J"
SHORTEST_S, LONGEST_S = 0.2, 86_400.0  # seconds from one look to the next
RECENT, HOUR = datetime.timedelta(minutes=15), datetime.timedelta(hours=1)  # period of times and batches; of outcomes
Facts = dict[str, Any]


class Command(BaseCommand):
    help = "What needs attention, the models and the workers. The exit status is 1 while something needs attention."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="for programs")
        parser.add_argument("--watch", type=float, metavar="S", help="again every S seconds, until Ctrl-C")

    def run_from_argv(self, argv: list[str]) -> None:
        os.environ.setdefault("DATABASE_ANSWER_S", "4")  # a database that does not answer is to be reported
        super().run_from_argv(argv)

    def handle(self, *args: Any, watch: float | None, **options: Any) -> None:
        try:
            with show_errors_as_sentences():
                while watch:
                    self._show(collect_facts(), before=CLEAR, **options)
                    time.sleep(min(max(SHORTEST_S, watch), LONGEST_S))
                found = collect_facts()
                self._show(found, **options)
        except KeyboardInterrupt:
            return
        except BrokenPipeError:  # the program that read the output has closed it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        if found["attention"]:
            sys.exit(1)

    def _show(self, found: Facts, *, before: str = "", **options: Any) -> None:
        if options["json"]:
            self.stdout.write(json.dumps(found))
            self.stdout.flush()  # a program that reads the lines of --watch needs each at once
            return
        lines = [_format_item(item) for item in found["attention"]] or ["All is well."]
        ended = ", ".join(f"{count:,} {status}" for status, count in found["ended"].items())
        for rows, nothing in (
            (found["models"], ""), (found["workers"], "No worker runs." if ended else ""),
            ([{"jobs in the last hour": ended}] if ended else [], ""), (found["failures"], ""),
        ):  # fmt: skip
            lines += ["", *(_format_table(rows) or [nothing])] if rows or nothing else []
        self.stdout.write(before + "\n".join(lines))


def collect_facts() -> Facts:
    """Return the facts that the command shows.

    Without a database there is only what needs attention: that the database is away.
    """
    needed = [
        {"code": item.code, "text": item.text, "todo": item.todo, "about": item.about, "follows": item.follows}
        for item in attention.find_items()
    ]
    found: Facts = {"attention": needed, "models": [], "workers": [], "ended": {}, "failures": []}
    try:
        living = list(workers.select_living_workers())
        queued, ages = sample.count_queued_jobs()
        running, recent = sample.count_running_jobs(), series.sum_figures_since(clock.get_database_time() - RECENT)
        ended = series.count_outcomes_since(clock.get_database_time() - HOUR)
        serving = workers.count_workers_by_model(living)
    except (DatabaseError, InterfaceError):
        connection.close()
        return found
    found["models"] = [
        {
            "model": name,
            "waiting": queued.get(name, 0),
            "oldest_s": round(ages.get(name, 0.0), 1),
            "running": running.get(name, 0),
            "workers": serving[name],
            **_compute_medians(recent.get(name, {})),
        }
        for name in (*get_catalog_or_empty(), *sorted(queued.keys() - get_catalog_or_empty().keys()))
    ]
    found["workers"] = [
        {
            "worker": worker.name,
            "state": worker.state,
            "replicas": worker.replicas_ready,
            "busy": worker.replicas_busy,
            "held": worker.held,
            "jobs_per_s": round(worker.jobs_per_s, 1),
        }
        for worker in living
    ]
    counts = series.sum_outcomes_by_status(ended)
    found["ended"] = {str(status): counts[status] for status in TERMINAL}
    found["failures"] = [
        {"model": model, "error": code, "jobs": count} for model, code, count in series.list_failures(ended)
    ]
    return found


def _format_item(item: Facts) -> str:
    """Return the lines of one thing that needs attention.

    A thing that follows from the one above has the same cure, which is not repeated.
    """
    return f"  - {escape_line(item['text'])}" if item["follows"] else f"! {escape_line(item['text'])}\n  {item['todo']}"


def _compute_medians(tally: Tally) -> Facts:
    times = {f"{name}_s": tallies.compute_quantile(tally.get(name), 0.5) for name in ("wait", "run")}
    known = {**times, "batch": tallies.compute_mean(tally.get("batch"))}
    return {name: None if value is None else round(value, 3) for name, value in known.items()}


def _format_table(rows: list[Facts]) -> list[str]:
    if not rows:
        return []
    lines = [list(rows[0]), *([_format_cell(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in lines]


def _format_cell(value: object) -> str:
    return "-" if value is None else escape_line(value)
