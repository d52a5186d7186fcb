"""An engine that takes memory, and time to be loaded: options = { megabytes, load_s }."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from inference.engines.base import Engine
from tests.faults.engines import GatedEcho

MIB = 2**20
SIZES = (32, 64)  # megabytes


class HeavyEcho(GatedEcho):
    def __init__(self, spec: Any) -> None:
        Engine.__init__(self, spec)

    def load(self, device: str) -> None:
        self.held = bytes([1]) * (self.spec.options["megabytes"] * MIB)
        time.sleep(self.spec.options["load_s"])  # a load takes real time, which the worker measures
        super().load(device)


def tables(*names: str, megabytes: int = 32, load_s: float = 0.1, idle_unload_s: float = 300.0) -> str:
    """Of models.toml: lazy models, whose weights are beside it."""
    return "".join(
        f"""
[{name}]
engine = "tests.heavy:HeavyEcho"
model = "{_folder(megabytes)}"
options = {{ megabytes = {megabytes}, load_s = {load_s} }}
load = "lazy"
idle_unload_s = {idle_unload_s}
max_batch_size = 8
time_limit_s = 180
"""
        for name in names
    )


def weights(folder: Path, megabytes: int) -> None:
    """What tells the size of such a model before it is loaded: nothing but the header of the file is ever read."""
    size = megabytes * MIB
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    within = folder / _folder(megabytes)
    within.mkdir()
    (within / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def _folder(megabytes: int) -> str:
    return f"weights-{megabytes}"
