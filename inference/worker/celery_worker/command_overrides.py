"""Celery's remote control for a worker that batches.

`revoke` and `terminate` cancel the job on its row. Commands that would break batching, or would change nothing, return
an error that names the alternative.
"""

from collections.abc import Callable, Iterable
from typing import Any

from celery.worker.control import Panel

from inference.values.uuid_parsing import parse_uuid
from inference.worker.maintenance.housekeeping import Housekeeping

MOST_IDS = 500  # ids of one command
INSTEAD = {
    "pool_grow": "each replica is bound to a device: start the worker with -c N",
    "pool_shrink": "each replica is bound to a device: start the worker with -c N",
    "rate_limit": "a rate limit holds single jobs back from their batch: max_queued in models.toml",
    "time_limit": "limits are those of a model: time_limit_s in models.toml",
    "cancel_consumer": "a worker consumes what it serves: pause the model, or drain the worker, in the admin",
}

Command = Callable[..., dict[str, Any]]


def override_commands(housekeeping: Housekeeping) -> None:
    for name, instead in INSTEAD.items():
        Panel.data[name] = _make_refusing_command(instead)
    for name in ("revoke", "terminate"):
        Panel.data[name] = _make_cancelling_command(Panel.data[name], housekeeping)


def _make_refusing_command(instead: str) -> Command:
    return lambda state, **arguments: {"error": instead}


def _make_cancelling_command(command: Command, housekeeping: Housekeeping) -> Command:
    def cancel(state: object, task_id: str | Iterable[str] | None, **arguments: Any) -> dict[str, Any]:
        ids = [task_id] if isinstance(task_id, str) else list(task_id or ())[:MOST_IDS]
        housekeeping.cancel_jobs_soon(filter(None, map(parse_uuid, ids)))
        return command(state, task_id=ids, **arguments)

    return cancel
