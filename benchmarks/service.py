"""Starts this service as its users do: `manage.py up`, configured by the environment, in folders of its own."""

from __future__ import annotations

import contextlib
import datetime
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import processes
from benchmarks.pipeline import Setting
from benchmarks.processes import Programs

ROOT = Path(__file__).parent.parent
PYTHON = os.environ.get("SERVICE_PYTHON", str(ROOT / ".venv" / "bin" / "python"))

CATALOG = """\
[{name}]
task = "{task}"
model = "{folder}"
backend = "{backend}"
precision = "{precision}"
max_batch_size = {max_batch_size}
{more}
"""


def require_environment() -> None:
    if not Path(PYTHON).exists():
        raise SystemExit(f"{PYTHON} is missing: `make bench` makes it; SERVICE_PYTHON names another environment.")


@contextlib.contextmanager
def running(
    name: str,
    setting: Setting,
    max_batch_size: int,
    log: Path,
    more: str = "",
    backend: str = "torch",
    precision: str = "float32",
) -> Iterator[Programs]:
    """`more`: lines of the model's entry."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        catalog = Path(folder) / "models.toml"
        entry = {"name": name, "task": setting.task, "folder": setting.folder, "max_batch_size": max_batch_size}
        catalog.write_text(CATALOG.format(**entry, backend=backend, precision=precision, more=more))
        command = (PYTHON, "manage.py", "up", "--host", "127.0.0.1", "--port", str(setting.port))
        with processes.running([command], environment(folder, catalog, setting.workers), log, ROOT) as programs:
            programs.data = Path(folder)
            yield programs


def mean_batch(data: Path, since: datetime.datetime) -> float | None:
    """Items a call, of the jobs made since then; None when there were none."""
    query = "SELECT count(*), sum(1.0 / batch_size) FROM inference_job WHERE batch_size > 0 AND created_at >= ?"
    with contextlib.closing(sqlite3.connect(data / "db.sqlite3")) as database:
        jobs, calls = database.execute(query, [since.strftime("%Y-%m-%d %H:%M:%S")]).fetchone()
    return jobs / calls if jobs else None


def environment(folder: str, catalog: Path, replicas: int) -> dict[str, str]:
    """The embedded broker's socket lies in TMPDIR, the database in DATA_DIR; Celery reads the options of its commands
    from variables, too."""
    return {
        "DATA_DIR": folder, "TMPDIR": folder, "MODELS_FILE": str(catalog), "LOG_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1", "API_KEY_REQUIRED": "0", "CELERY_WORKER_CONCURRENCY": str(replicas),
    }  # fmt: skip
