"""A map takes as much memory for many inputs as for few."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping, Sequence
from typing import Any
from unittest import TestCase
from unittest.mock import Mock

from batch_inference_client import BaseClient
from batch_inference_client.service import Document

OUTPUT = "n" * 200


class Instant(Mock):
    """A service that has an answer for every job at once, and remembers none."""

    def submit_bulk(self, lines: Sequence[bytes], *, terms: Mapping[str, Any], key: str) -> Document:
        start = int(key.rpartition(":")[2])
        return {"jobs": [{"index": index, "id": f"job-{start + index}"} for index in range(len(lines))]}

    def wait(self, ids: Sequence[str], *, wait_s: float) -> Document:
        items = [{"id": each, "status": "succeeded", "output": OUTPUT + each, "error": None} for each in ids]
        return {"items": items, "missing": [], "left": 0}


class MemoryTests(TestCase):
    def peak(self, inputs: int) -> int:
        tracemalloc.start()
        try:
            with BaseClient(Instant()) as client:
                for place, answer in enumerate(client.map("echo", (f"text {number}" for number in range(inputs)))):
                    self.assertEqual(answer, f"{OUTPUT}job-{place}")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    def test_three_times_the_inputs_take_no_more_memory(self) -> None:
        """A quarter of an answer each is the margin for what other threads of this process take."""
        few = self.peak(8_000)
        self.assertLess(self.peak(24_000) - few, (24_000 - 8_000) * len(OUTPUT) / 4)
