import gc
import importlib.machinery
import json
import os
import platform
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path
from typing import Any
from unittest.mock import patch

from django.test import SimpleTestCase

from inference.catalog.specs import ModelSpec
from inference.engines.artifacts import memory
from inference.engines.artifacts.memory import CPU
from tests import tiny_models
from tests.conditions import PATIENCE_S
from tests.cuda import GB, gpus

MIB = 2**20


def spec(model: str, **values: Any) -> ModelSpec:
    return ModelSpec(**{"name": "mine", "model": model, "engine": "tests.echo:EchoEngine", **values})


class MeasuredTests(SimpleTestCase):
    def test_a_library_that_breaks_as_it_is_imported_is_left_to_the_load(self) -> None:
        built_in = spec("x", engine="inference.engines.embeddings:EmbeddingsEngine", task="feature-extraction")
        fails = RuntimeError("no operator")
        broken = patch.object(importlib.machinery.SourceFileLoader, "exec_module", side_effect=fails)
        with patch.dict(sys.modules), broken:
            sys.modules.pop("transformers.pipelines", None)
            with memory.measure_memory_taken(built_in, CPU):
                self.assertTrue(gc.isenabled())


class EstimateTests(SimpleTestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def weights(self, name: str = "model.safetensors", **tensors: tuple[str, int]) -> None:
        """By name: the type, and how many numbers."""
        header, at = {"__metadata__": {"format": "pt"}}, 0
        for tensor, (dtype, count) in tensors.items():
            size = count * {"F32": 4, "I64": 8, "BF16": 2}[dtype]
            header[tensor] = {"dtype": dtype, "shape": [count], "data_offsets": [at, at := at + size]}  # type: ignore
        text = json.dumps(header).encode()
        (self.folder / name).write_bytes(len(text).to_bytes(8, "little") + text)

    def estimate(self, **values: Any) -> int | None:
        return memory.estimate_weights_memory(spec(str(self.folder), **values))

    def test_it_is_the_size_of_the_weights_in_the_dtype_that_they_are_loaded_in(self) -> None:
        self.weights(a=("F32", 1000), b=("I64", 10))
        self.assertEqual(self.estimate(), 4080)
        self.assertEqual(self.estimate(dtype="bfloat16"), 2080)
        self.weights(a=("BF16", 1000))
        self.assertEqual(self.estimate(dtype="float32"), 4000)

    def test_the_files_of_an_index_count_and_no_others(self) -> None:
        self.weights("a.safetensors", a=("F32", 100))
        self.weights("b.safetensors", b=("F32", 10))
        self.weights("c.safetensors", c=("F32", 1))
        index = {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index))
        self.assertEqual(self.estimate(), 440)

    def test_nothing_is_known_of_what_is_not_here_or_no_folder_or_damaged(self) -> None:
        self.assertIsNone(self.estimate())
        for unknown in ("", "en_core_web_sm", "/nowhere", "package:no_such/model"):
            self.assertIsNone(memory.estimate_weights_memory(spec(unknown)))
        self.assertIsNone(memory.estimate_weights_memory(spec("some/model", revision="714eb0f")))
        for damaged in (b"", b"\xff" * 20, b"\x02\0\0\0\0\0\0\0[]", b'\x07\0\0\0\0\0\0\0{"a":1}'):
            (self.folder / "model.safetensors").write_bytes(damaged)
            self.assertIsNone(self.estimate())

    def test_of_a_real_model_it_is_what_its_parameters_take(self) -> None:
        tiny_models.build("text-classification", self.folder)
        taken = memory.estimate_weights_memory(spec(str(self.folder)))
        self.assertAlmostEqual(taken or 0, (self.folder / "model.safetensors").stat().st_size, delta=20_000)


class MeasureTests(SimpleTestCase):
    def setUp(self) -> None:
        gc.freeze()  # garbage is looked for, and not in all that was ever imported
        self.addCleanup(gc.unfreeze)

    def test_a_model_takes_what_the_process_grows_by(self) -> None:
        """A quarter is the margin for what this process takes and gives back besides."""
        for _ in range(2):  # what is free again counts again
            with memory.measure_memory_taken(spec(""), CPU) as taken:
                held = [bytes([1]) * MIB for _ in range(256)]
            self.assertAlmostEqual(taken.bytes / MIB, len(held), delta=64)
            del held

    def test_it_takes_at_least_its_weights_which_may_be_mapped(self) -> None:
        with (
            patch.object(memory, "estimate_weights_memory", return_value=5 * MIB),
            memory.measure_memory_taken(spec(""), CPU) as taken,
        ):
            pass
        self.assertGreaterEqual(taken.bytes, 5 * MIB)


class KeptTests(SimpleTestCase):
    @unittest.skipUnless(platform.libc_ver()[0] == "glibc", "of glibc")
    def test_what_a_batch_frees_the_next_one_takes(self) -> None:
        """In a process of its own: the thresholds of this one are not the default's any more."""
        faults = """
            import resource
            from inference.engines.artifacts import memory

            def batches():
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                for _ in range(10):
                    activations = [bytearray(2**20) for _ in range(32)]
                    del activations
                return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

            batches()
            before = batches()
            memory.keep_freed_memory()
            batches()
            print(before, batches())
        """
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        command = [sys.executable, "-c", textwrap.dedent(faults)]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
        before, after = map(int, run.stdout.split())
        self.assertLess(after, before / 10)

    def test_where_a_threshold_is_too_high_the_highest_is_set(self) -> None:
        """By an older glibc, in which setting the other one alone keeps this one as low as it is."""
        thresholds: dict[int, int] = {}

        def mallopt(name: int, value: int) -> int:
            is_refused = name == memory.MMAP_THRESHOLD and value > 32 * MIB
            if not is_refused:
                thresholds[name] = value
            return not is_refused

        with patch("ctypes.CDLL") as library:
            library.return_value.mallopt.side_effect = mallopt
            memory.keep_freed_memory()
        self.assertEqual(thresholds, {memory.TRIM_THRESHOLD: 256 * MIB, memory.MMAP_THRESHOLD: 32 * MIB})


class TotalTests(SimpleTestCase):
    def test_a_control_group_limits_what_the_machine_has(self) -> None:
        machine = memory.read_total_memory(CPU)
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "cgroup").write_text("0::/system.slice/worker.service\n")
        inner = folder / "groups" / "system.slice" / "worker.service"
        inner.mkdir(parents=True)
        for name, value in (("OWN_CGROUPS", folder / "cgroup"), ("CGROUPS", folder / "groups")):
            self.enterContext(patch.object(memory, name, value))
        for limit, expected in (("max", machine), (str(300 * MIB), 300 * MIB)):
            (inner / "memory.max").write_text(f"{limit}\n")
            self.assertEqual(memory.read_total_memory(CPU), expected)
        (inner.parent / "memory.max").write_text(f"{200 * MIB}\n")
        self.assertEqual(memory.read_total_memory(CPU), 200 * MIB)

    def test_of_several_gpus_it_is_what_all_have(self) -> None:
        with gpus(count=2):
            self.assertEqual(memory.read_total_memory("cuda:0"), 160 * GB)

    def test_each_that_shares_a_gpu_keeps_to_its_part(self) -> None:
        for sharing, part in ((1, None), (2, 0.5), (4, 0.25)):
            with self.subTest(sharing), gpus() as found:
                memory.limit_memory_to_share("cuda:0", sharing)
                self.assertEqual(found.fractions, {0: part - memory.CONTEXT / (80 * GB)} if part else {})

    def test_a_gpu_in_an_error_state_is_left_to_what_loads(self) -> None:
        with gpus() as found:
            found.broken = RuntimeError("CUDA error: an illegal memory access was encountered")
            memory.limit_memory_to_share("cuda:0", 2)

    def test_a_cpu_has_no_parts(self) -> None:
        with gpus() as found:
            memory.limit_memory_to_share(CPU, 4)
            self.assertEqual(found.fractions, {})
