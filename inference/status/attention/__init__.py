"""The list of what needs an operator's attention now, each item with what to do; it is empty when all is well.

`CODES` are also the names of the alerts in deploy/prometheus/rules.yml, which watch the service from outside.
"""

from __future__ import annotations

from collections.abc import Iterator

from django.db import DatabaseError, InterfaceError, ProgrammingError

from inference.status import readiness, workers
from inference.status.attention import infrastructure, jobs, models_and_workers
from inference.status.attention.item import AttentionItem, order_items_by_cause
from inference.store import pauses_and_drains

CODES = (
    "DatabaseAway", "DatabaseSlow", "DatabaseLocked", "BrokerAway", "BrokerSlow", "DiskFills", "ModelsFileRefused",
    "ModelUnserved", "ModelPaused", "WorkerGone", "WorkerCutOff", "WorkerDegraded", "WorkerDrained", "ReplicaCrashes",
    "DeviceWithdrawn", "QueueGrows", "QueueFull", "QueueStuck", "FailuresUnusual", "WebhooksFail", "WebhooksWait",
    "FileBatchesWait", "RetentionStopped",
)  # fmt: skip


def find_items() -> list[AttentionItem]:
    """Return what needs attention, the gravest first, each item with its consequences below it.

    A database or a broker that is away makes this function raise nothing: it is an item of the list then.
    """
    found = [*infrastructure.find_broker_items(), *infrastructure.find_full_disks()]
    try:
        slow, locked = list(infrastructure.find_slow_database()), list(infrastructure.find_locked_database())
        # While the database is locked, its rows are out of date.
        return order_items_by_cause([*slow, *locked, *found, *(() if locked else _find_row_items())])
    except (DatabaseError, InterfaceError) as error:
        text = f"The database does not answer: {error}".strip()
        return [AttentionItem(code="DatabaseAway", text=text, todo=_choose_todo(error)), *found]


def _choose_todo(error: Exception) -> str:
    if isinstance(error, ProgrammingError) or str(error).startswith("no such "):
        return "Run manage.py migrate: the tables are not those of this version."
    return "Start it, or check the network to it. Everything resumes by itself."


def _find_row_items() -> Iterator[AttentionItem]:
    living = list(workers.select_living_workers())
    paused = pauses_and_drains.list_paused_models()
    unserved = {name: why for name, why in readiness.find_unserved_reasons(living).items() if name not in paused}
    yield from models_and_workers.find_refused_models_file(living)
    yield from models_and_workers.find_unserved_models(unserved, living)
    yield from models_and_workers.find_paused_models()
    yield from models_and_workers.find_gone_workers(living)
    yield from models_and_workers.find_worker_items(living)
    yield from jobs.find_long_queues(living, quiet={*unserved, *paused})
    yield from jobs.find_unusual_failures()
    yield from jobs.find_undelivered_webhooks()
    yield from jobs.find_waiting_file_batches()
    yield from models_and_workers.find_stopped_retention()
