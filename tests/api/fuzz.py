"""Fuzzes the running service from its own OpenAPI document: `python -m tests.api.fuzz 300` (examples an operation).

Nothing may be answered with 5xx but 503 and 504, which say what to do, and every answer must be as the document says.
On PostgreSQL: `python -m tests.postgres python -m tests.api.fuzz 300`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

MODELS = """
[echo]
engine = "tests.echo:EchoEngine"
max_queued = 1000000
[echo.parameters]
top_k = { type = "integer", min = 1, max = 10 }
share = { type = "number", min = 0.0, max = 1.0 }
labels = { type = "array", items = "string", max_items = 3 }

[texts]
engine = "tests.encoders:EncoderEngine"
task = "text-classification"

[ranker]
engine = "tests.encoders:EncoderEngine"
task = "text-ranking"

[embeddings]
engine = "tests.encoders:EncoderEngine"
[embeddings.parameters]
details = { type = "boolean" }
dimensions = { type = "integer", min = 1, max = 100 }
encoding_format = { type = "string", choices = ["float", "base64"] }
input_type = { type = "string", choices = ["query", "document"] }
normalize = { type = "boolean" }
pooling = { type = "string", choices = ["none"] }
prompt_name = { type = "string", max_length = 100 }
truncate = { type = "boolean" }

[pictures]
engine = "tests.echo:EchoEngine"
task = "image-classification"

[words]
engine = "tests.words:WordsEngine"
task = "text-generation"
max_queued = 1000000
"""
# By name of a body, what it may name: a model that answers it, one that does not, and none.
NAMED = {
    **{name: ["embeddings", "echo", "nobody"] for name in ("EmbeddingsBody", "CohereBody")},
    **{name: ["words", "echo", "nobody"] for name in ("ChatBody", "TextBody")},
    **{name: ["embeddings", "echo", "nobody", None] for name in ("EmbedBody", "TokensBody", "SimilarityBody")},
    "PredictBody": ["texts", "echo", "nobody", None],
    "RerankBody": ["ranker", "echo", "nobody", None],
}
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


def documented(base: str) -> dict[str, Any]:
    """The service's document with names of models."""
    with urllib.request.urlopen(f"{base}/v1/schema") as answer:
        document: dict[str, Any] = json.load(answer)
    schemas = document["components"]["schemas"]
    for name, models in NAMED.items():
        schemas[name]["properties"]["model"] = {"enum": models}
        schemas[name]["additionalProperties"] = False  # else hardly a body is answered
    return document


def fuzz(base: str, examples: int, *, seed: int = 1) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        config, document = Path(folder) / "schemathesis.toml", Path(folder) / "openapi.json"
        config.write_text(CONFIG)
        document.write_text(json.dumps(documented(base)))
        command = [
            sys.executable, "-m", "schemathesis.cli", f"--config-file={config}", "run", str(document), f"--url={base}",
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
