"""An engine whose calls a test holds, so that it knows what has not ended."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tests.echo import EchoEngine

HELD = "held"  # in DATA_DIR: while there is such a file, no call is answered


class HeldEcho(EchoEngine):
    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        while (Path(os.environ["DATA_DIR"]) / HELD).exists():
            time.sleep(0.02)  # another process removes the file, which tells nobody
        return super().predict(inputs, parameters)
