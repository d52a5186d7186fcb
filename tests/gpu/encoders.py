"""Case 14: a text encoder by CUDA graphs and without padding answers as the plain model, and how long each takes."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from inference.engines.accelerate import installation
from tests import tiny_models
from tests.gpu.answers import COSINES, MINILM, mixed_texts, shift
from tests.gpu.machine import Machine, engine, expect

BATCHES = {"1 text of 14 tokens": (1, 14), "8": (8, 14), "64": (64, 14), "512": (512, 14), "64 of 120": (64, 120)}
MIXED = 256
CALLS = 10
DTYPES = ("float32", "bfloat16")
# By the name of a column, the shortcuts that are left out.
WAYS = {"as served": (), "graphs": ("_make_unpadded_encoder",), "no padding": ("_make_graphs",)}


def graphs(machine: Machine) -> str:
    with tempfile.TemporaryDirectory() as folder, machine.encoders():
        values: dict[str, Any] = dict(MINILM)
        if machine.is_stand_in:
            values["model"] = str(tiny_models.build("feature-extraction", Path(folder, "model")))
        tables = [_table(machine, values, dtype) for dtype in DTYPES]
    return "\n".join(["the same answers; ms a call:", *(line for table in tables for line in table)])


def _table(machine: Machine, values: dict[str, Any], dtype: str) -> list[str]:
    """A row a batch, a column a way."""
    batches = {name: [" ".join(["dog"] * (length - 2))] * size for name, (size, length) in BATCHES.items()}
    batches = {name: texts for name, texts in batches.items() if not machine.is_stand_in or len(texts) < 64}
    mixed = mixed_texts(8 if machine.is_stand_in else MIXED)
    batches[f"{len(mixed)} mixed"] = mixed
    with left_out("_make_graphs", "_make_unpadded_encoder"):
        plain = engine(machine, **values, dtype=dtype)
    expected = {name: plain.embed(texts) for name, texts in batches.items()}
    columns = {"plain": {name: _ms(machine, plain, texts) for name, texts in batches.items()}}
    for way, without in WAYS.items():
        with left_out(*without):
            made = engine(machine, **values, dtype=dtype)
        on = {"graphs": "forward" in vars(made.model), "no padding": "forward" in vars(made.model.encoder)}
        expect(all(on[name] for name in on if name == way or not without), f"{way} in {dtype}: on is {on}")
        if machine.broken:
            shift(made.model, by=0.5)
        for name, texts in batches.items():
            cosine = float((made.embed(texts) * expected[name]).sum(1).min())
            expect(cosine >= COSINES[dtype], f"{way} in {dtype}, {name}: a cosine of {cosine:.5f}")
        columns[way] = {name: _ms(machine, made, texts) for name, texts in batches.items()}
    head = f"    {dtype:<22}" + "".join(f"{way:>12}" for way in columns)
    return [head, *(f"    {name:<22}" + "".join(f"{ms[name]:12.2f}" for ms in columns.values()) for name in batches)]


@contextlib.contextmanager
def left_out(*shortcuts: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name in shortcuts:
            stack.enter_context(patch.object(installation, name, return_value=None))
        yield


def _ms(machine: Machine, made: Any, texts: list[str]) -> float:
    """Measure the median of calls with texts that were read before, as a replica reads them ahead."""
    took, read = [], made.prepare(texts, {})
    for _ in range(2 if machine.is_stand_in else CALLS):
        started = time.perf_counter()  # a figure of the table
        made.predict_prepared_inputs(read, {})
        machine.synchronize()
        took.append(time.perf_counter() - started)
    return 1000 * statistics.median(took)
