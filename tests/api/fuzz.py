"""Fuzzes the running service from its own OpenAPI document: `python -m tests.api.fuzz 300` (examples an operation).

Nothing may be answered with 5xx but 503 and 504, which say what to do, and every answer must be as the document says.
On PostgreSQL: `python -m tests.postgres python -m tests.api.fuzz 300`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

MODELS = """
[echo]
engine = "tests.echo:EchoEngine"
max_queued = 1000000
[echo.parameters]
top_k = { type = "integer", min = 1, max = 10 }
share = { type = "number", min = 0.0, max = 1.0 }
labels = { type = "array", items = "string", max_items = 3 }

[texts]
engine = "tests.echo:EchoEngine"
task = "text-classification"

[pictures]
engine = "tests.echo:EchoEngine"
task = "image-classification"
"""
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
)
CONFIG = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "503", "504"]
"""


def fuzz(base: str, examples: int, *, seed: int = 1) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "schemathesis.toml"
        config.write_text(CONFIG)
        command = [
            sys.executable, "-m", "schemathesis.cli", f"--config-file={config}", "run", f"{base}/v1/schema",
            f"--checks={','.join(CHECKS)}", f"--max-examples={examples}", f"--seed={seed}",
            "--phases=examples,coverage,fuzzing",
            "--request-timeout=30", "--suppress-health-check=all", "--warnings=off", "--continue-on-failure",
        ]  # fmt: skip
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def main() -> None:
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
    from tests.ports import HOST
    from tests.stack import Stack

    with Stack(models=MODELS) as stack:
        finished = fuzz(f"http://{HOST}:{stack.port}", int(sys.argv[1]))
        sys.stdout.write(finished.stdout + finished.stderr)
        failures = [line for line in stack.log if "Traceback" in line or " status=500 " in line]
    sys.exit(finished.returncode or len(failures))


if __name__ == "__main__":
    main()
