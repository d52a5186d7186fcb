"""What the operator's pages ask of a database with a million finished jobs and a thousand that wait.

.venv/bin/python -m benchmarks.admin [--jobs 1000000] [--publish]
.venv/bin/python -m tests.postgres .venv/bin/python -m benchmarks.admin --publish

The database is one of its own, beside that of DATABASE_URL, and is removed at the end.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import django


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="that are finished")
    parser.add_argument("--waiting", type=int, default=1000, help="jobs that wait")
    parser.add_argument("--publish", action="store_true", help="write the figures into docs/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmarks-admin-") as folder:
        models = Path(folder) / "models.toml"
        os.environ |= {"DATA_DIR": folder, "MODELS_FILE": str(models), "DJANGO_SETTINGS_MODULE": "project.settings"}
        os.environ.setdefault("LOG_LEVEL", "ERROR")
        django.setup()
        from benchmarks.admin import bench  # needs Django

        models.write_text(bench.CATALOG)
        bench.run(options.jobs, options.waiting, publish=options.publish)


if __name__ == "__main__":
    main()
