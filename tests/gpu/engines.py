"""Engines of the cases of the whole service. Each replica imports this: nothing here takes long to import."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from inference.catalog.specs import ModelSpec
from inference.engines.base import Engine
from tests.conditions import eventually


class Blocked(Engine):
    """Needs so many bytes of the device, which another process may have: there are the files "short", from the moment
    that it is to, and "taken", once it has. On a CPU that is all. A call takes as long as there is the file "gate".
    What could not be loaded ends its process in a call, if it is believed to be there."""

    lacks = False

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.folder = Path(spec.options["folder"])

    def load(self, device: str) -> None:
        try:
            if (self.folder / "short").exists():
                eventually((self.folder / "taken").exists, "another process has the memory")
                if device == "cpu":
                    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
            if device != "cpu":
                import torch

                self.held = torch.empty(self.spec.options["bytes"], dtype=torch.uint8, device=device)
        except RuntimeError:
            with (self.folder / "tries").open("a") as tries:
                tries.write(".")
            self.lacks = True
            if not self.spec.options["believed"]:
                raise

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        if self.lacks:
            os.kill(os.getpid(), signal.SIGKILL)
        eventually(lambda: not (self.folder / "gate").exists(), "the gate is open")
        return inputs


class Meets(Engine):
    """Lets its first calls wait for each other, until as many replicas compute at once as the file "replicas" says.

    One that is alone waits for none.
    """

    def load(self, device: str) -> None:
        self.folder = Path(self.spec.options["folder"])

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        if self.spec.options["alone"]:
            return inputs
        replicas = int((self.folder / "replicas").read_text())
        met, mine = self.folder / f"{replicas} have met", self.folder / f"call-{os.getpid()}"
        mine.touch()
        eventually(lambda: met.exists() or len([*self.folder.glob("call-*")]) == replicas, "all compute")
        met.touch()
        mine.unlink()
        return inputs
