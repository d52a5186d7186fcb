"""The engine that most faults are played with. Named in the catalog of `tests.faults.service`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from inference.engines.echo import EchoEngine

CALLS = "engine-calls"  # in DATA_DIR: a line an engine call: its process, and the number of its items


class RecordingEcho(EchoEngine):
    """Writes down each engine call before it is made."""

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        _note_call(len(inputs))
        return super().predict(inputs, parameters)


def _note_call(items: int) -> None:
    """Appended in one write: many processes share the file, and some die in the call."""
    file = os.open(Path(os.environ["DATA_DIR"]) / CALLS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, f"{os.getpid()} {items}\n".encode())
    os.close(file)
