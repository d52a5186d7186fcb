"""Pages of a mapped file are let go, unless somebody has written to it."""

import sys
import tempfile
from pathlib import Path
from unittest import TestCase, skipUnless

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from inference.engines.artifacts import page_release
from tests.processes import resident

MIB = 2**20


@skipUnless(sys.platform == "linux", "pages are let go on Linux")
class MappedTests(TestCase):
    def setUp(self) -> None:
        file = Path(self.enterContext(tempfile.TemporaryDirectory())) / "model.safetensors"
        save_file({"a": torch.arange(8 * MIB), "b": torch.ones(3)}, file)
        self.tensor = self.enterContext(safe_open(file, framework="pt")).get_tensor("a")
        self.assertEqual(int(self.tensor.sum()), 4 * MIB * (8 * MIB - 1))

    def let_go(self) -> float:
        """MiB that this gives back, of 64; a third of them is the margin for what else this process takes."""
        before, begin = resident(), self.tensor.data_ptr()
        page_release.release_pages([(begin, begin + 64 * MIB), (begin, begin)])
        return (before - resident()) / MIB

    def test_they_are_read_again_where_somebody_does(self) -> None:
        self.assertAlmostEqual(self.let_go(), 64, delta=20)
        self.assertEqual(int(self.tensor.sum()), 4 * MIB * (8 * MIB - 1))

    def test_what_was_written_stays(self) -> None:
        self.tensor[MIB] = 0
        self.assertAlmostEqual(self.let_go(), 0, delta=20)
        self.assertEqual(int(self.tensor[MIB]), 0)

    def test_other_memory_stays(self) -> None:
        self.tensor = torch.arange(8 * MIB)
        self.assertAlmostEqual(self.let_go(), 0, delta=20)
        self.assertEqual(int(self.tensor[-1]), 8 * MIB - 1)
