"""The engine that most faults are played with. Named in the catalog of `tests.faults.service`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from inference.errors import ModelUnavailable
from inference.worker.replicas.registry import SLOW_S
from tests.echo import EchoEngine, Fail, misbehave, wait_while_held

CALLS = "engine-calls"  # in DATA_DIR: a line an engine call: its process, and the number of its items
READING = "reading"  # in DATA_DIR: made by `ReadsAhead` as it begins to read an input
CANNOT_LOAD = "cannot-load"  # in DATA_DIR: while there is such a file, no fragile model can be loaded
GENERATED = "generated_text"
POISON = "poison"  # a word that crashes the process of a transformers model


class RecordingEcho(EchoEngine):
    """Writes down each engine call before it is made."""

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        _note_call(len(inputs))
        return super().predict(inputs, parameters)


class CompletingEcho(RecordingEcho):
    """Answers as a model that generates text does, with the digest that `tests.echo` makes of an input."""

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        return [[{GENERATED: answer["digest"]}] for answer in super().predict(inputs, parameters)]


class ReadsAhead(RecordingEcho):
    """Misbehaves as it reads, too, where it is not told to wait."""

    prepares = True

    def prepare(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        for value in inputs:
            if value.get("fail") != Fail.HELD:
                (Path(os.environ["DATA_DIR"]) / READING).touch()
                misbehave(value)
        return inputs

    def predict_prepared_inputs(self, prepared: list[Any], parameters: dict[str, Any]) -> list[Any]:
        return super().predict(prepared, parameters)

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        return super().predict(self.prepare(inputs, parameters), parameters)


class Fragile(RecordingEcho):
    """Cannot always be loaded."""

    def load(self, device: str) -> None:
        if (Path(os.environ["DATA_DIR"]) / CANNOT_LOAD).exists():
            raise ModelUnavailable("told not to load")
        super().load(device)


class Upset(EchoEngine):
    """Fails on inputs that begin with "bad", while there is a file upset in DATA_DIR."""

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        if (Path(os.environ["DATA_DIR"]) / "upset").exists() and any(str(value).startswith("bad") for value in inputs):
            raise RuntimeError("upset by what it reads")
        return super().predict(inputs, parameters)


class Shaky(EchoEngine):
    """Its GPU is in an error state, while there is shaky-NUMBER in DATA_DIR."""

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        if (Path(os.environ["DATA_DIR"]) / f"shaky-{os.environ['CUDA_VISIBLE_DEVICES']}").exists():
            raise RuntimeError("CUDA error: unspecified launch failure")
        return super().predict(inputs, parameters)


class GatedEcho(RecordingEcho):
    """Cannot be loaded while there is a file broken-NAME in DATA_DIR, takes its time while there is held-NAME, loads
    slowly while there is slow-NAME, and ends its process while there is deadly-NAME. Of an entry with a revision, that
    takes the name's place."""

    def load(self, device: str) -> None:
        folder, name = Path(os.environ["DATA_DIR"]), self.spec.revision or self.spec.name
        wait_while_held(f"held-{name}")
        if (folder / f"slow-{name}").exists():
            time.sleep(SLOW_S + 0.1)
        if (folder / f"deadly-{name}").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        if (folder / f"broken-{name}").exists():
            raise RuntimeError("no weights yet")
        super().load(device)


class Revised(GatedEcho):
    """Each answer names the revision that gave it. A call takes its time while there is busy-REVISION in DATA_DIR."""

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        wait_while_held(f"busy-{self.spec.revision}")
        return [{**answer, "revision": self.spec.revision} for answer in super().predict(inputs, parameters)]


def _note_call(items: int) -> None:
    """Appended in one write: many processes share the file, and some die in the call."""
    file = os.open(Path(os.environ["DATA_DIR"]) / CALLS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, f"{os.getpid()} {items}\n".encode())
    os.close(file)
