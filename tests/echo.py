"""An engine with no weights: answers {"echo": input, …}, and misbehaves when it is told to.

An input {"text": "…", "fail": "crash"} says how, see `Fail`; "seconds" and "megabytes" say how much. In the catalog,
options = { fixed_ms, per_item_ms, per_token_ms, max_tokens } say what a call costs, and what fits. With
options = { gate = "name" } a call lasts as long as there is a file of that name in DATA_DIR.
"""

from __future__ import annotations

import ctypes
import enum
import hashlib
import json
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

from inference.catalog.sizes import lengths
from inference.engines.base import Engine
from inference.errors import InvalidInput, ModelUnavailable

FOREVER_S = 86_400.0
HELD = "held"  # in DATA_DIR: while there is such a file, what is told to wait for it does
OPTIONS = ("fixed_ms", "per_item_ms", "per_token_ms", "max_tokens", "gate")


class Fail(enum.StrEnum):
    """What an input can ask for in its "fail"."""

    EXCEPTION = "exception"  # the call raises
    INVALID = "invalid"  # this item is refused, in its place
    NAN = "nan"  # this item's answer is not a number
    NUL = "nul"  # this item's answer has a character that PostgreSQL cannot store
    SURROGATE = "surrogate"  # this item's answer has half a character
    SHORT = "short"  # the call answers one item less
    OOM = "oom"  # the call raises what torch raises when a device's memory is full
    HELD = "held"  # waits while there is the file `HELD`, and is answered as any other then
    HANG_SLEEP = "hang-sleep"  # sleeps, for "seconds"
    HANG_BUSY = "hang-busy"  # computes in Python, for "seconds"
    HANG_GIL = "hang-gil"  # a C call that holds the interpreter and hears no signal, for "seconds"
    CRASH = "crash"  # a segmentation fault
    DEVICE = "device"  # the call raises what torch raises when a device is in an error state
    EXHAUST = "exhaust"  # really takes "megabytes" of memory


UNSTORABLE = {Fail.NUL: "a\0b", Fail.SURROGATE: "a\ud800b"}
ANSWERED = {"", *(fail.value for fail in Fail)}


class EchoEngine(Engine):
    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        for option in self.spec.options:
            if option not in OPTIONS:
                raise ModelUnavailable(f"unknown option {option!r}; the echo engine has {', '.join(OPTIONS)}.")

    def load(self, device: str) -> None:
        self.device = device

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        self._spend(inputs)
        for value in inputs:
            misbehave(value)
        answers = [_answer(value) for value in inputs]
        return answers[:-1] if any(_fail(value) == Fail.SHORT for value in inputs) else answers

    def _spend(self, inputs: list[Any]) -> None:
        """Take the time that a padded batch of this shape takes, or run out of memory."""
        if not (options := self.spec.options):
            return
        tokens = 0
        if options.keys() & {"per_token_ms", "max_tokens"}:  # to measure takes as long as all else
            tokens = len(inputs) * max(lengths.measure_inputs(self.spec, value)[1] for value in inputs)
        if tokens > options.get("max_tokens", math.inf):
            raise RuntimeError(f"CUDA out of memory. Tried to allocate {tokens} tokens")
        if gate := options.get("gate"):
            wait_while_held(gate)
        items_ms = options.get("per_item_ms", 0) * len(inputs)
        # what a call costs is real time: the worker measures it
        time.sleep((options.get("fixed_ms", 0) + items_ms + options.get("per_token_ms", 0) * tokens) / 1000)


def expected(value: Any) -> dict[str, Any]:
    """What the engine answers to `value`: a function of the input that nobody gets right by chance."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return {
        "echo": value,
        "length": len(text),
        "digest": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
    }


def _fail(value: Any) -> str:
    return str(value.get("fail", "")) if isinstance(value, dict) else ""


def _answer(value: Any) -> Any:
    fail = _fail(value)
    if fail == Fail.NAN:
        return {"echo": value, "score": math.nan}
    if fail in UNSTORABLE:
        return {"echo": value, "text": UNSTORABLE[Fail(fail)]}
    if fail == Fail.INVALID or fail not in ANSWERED:
        return InvalidInput(f"fail must be one of {', '.join(Fail)}, not {fail!r}.", field="inputs.fail")
    return expected(value)


def misbehave(value: Any) -> None:
    fail = _fail(value)
    if not fail:
        return
    if fail == Fail.EXCEPTION:
        raise ValueError(f"told to fail: {value.get('text', '')}")
    if fail == Fail.OOM:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if fail == Fail.DEVICE:
        raise RuntimeError("CUDA error: device-side assert triggered")
    if fail == Fail.HELD:
        wait_while_held()
    if fail == Fail.CRASH:
        ctypes.string_at(0)
    if fail == Fail.EXHAUST:
        _exhaust(int(value.get("megabytes", 1024)))
    if fail.startswith("hang-"):
        _hang(fail, float(value.get("seconds", FOREVER_S)))


def wait_while_held(name: str = HELD) -> None:
    while is_held(name):
        time.sleep(0.02)  # between two looks at what only the test changes


def is_held(name: str = HELD) -> bool:
    """Return whether a test holds what waits for this file in DATA_DIR."""
    return (Path(os.environ["DATA_DIR"]) / name).exists()


def _exhaust(megabytes: int) -> None:
    """Every page is written to, so that it is taken and not only promised."""
    taken = [b"x" * (1 << 20) for _ in range(megabytes)]
    del taken


def _hang(fail: str, seconds: float) -> None:
    if fail == Fail.HANG_SLEEP:
        time.sleep(seconds)  # which is the fault
    elif fail == Fail.HANG_BUSY:
        until = time.monotonic() + seconds  # which is the fault
        while time.monotonic() < until:
            pass
    elif fail == Fail.HANG_GIL:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        ctypes.PyDLL(None).sleep(ctypes.c_uint(math.ceil(seconds)))
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def speak(inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
    """A tone for each text, as text-to-audio answers: as many samples as the text has characters."""
    return [{"audio": [[0.5] * len(text)], "sampling_rate": 16_000} for text in inputs]
