"""The stand-in of `benchmarks.busy`: a call of any size sleeps, as one of a GPU does, and writes down when."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Any

from tests.echo import EchoEngine

CALLS = "calls"  # in DATA_DIR: each call of each process
CALL = struct.Struct("=qdd")  # the process, and monotonic: began, ended


class TimedEcho(EchoEngine):
    def load(self, device: str) -> None:
        super().load(device)
        self.calls = os.open(Path(os.environ["DATA_DIR"]) / CALLS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        began = time.monotonic()
        time.sleep(self.spec.options["fixed_ms"] / 1000)
        os.write(self.calls, CALL.pack(os.getpid(), began, time.monotonic()))
        return inputs
