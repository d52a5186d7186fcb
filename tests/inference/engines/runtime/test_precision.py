"""dtype = "tf32", options.device_map and options.quantization, as far as a CPU shows them."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import TestCase
from unittest.mock import patch

import torch
from torch import nn

from inference.catalog.specs import ModelSpec
from inference.engines import loading
from inference.engines.runtime import parity, precision
from inference.errors import ModelUnavailable
from tests import tiny_models
from tests.conditions import PATIENCE_S


def spec(**values: Any) -> ModelSpec:
    return ModelSpec(name="m", task="text-classification", model="x", **values)


class ArgumentsTests(TestCase):
    def arguments(self, device: str = "cuda:0", gpus: int = 1, **options: Any) -> dict[str, Any]:
        has = patch("importlib.util.find_spec", return_value=object())
        with patch.object(torch.cuda, "device_count", return_value=gpus), has:
            return precision.make_loading_arguments(spec(options=options, dtype="bfloat16"), device)

    def test_a_model_lies_on_its_one_device(self) -> None:
        self.assertEqual(self.arguments(), {"dtype": "bfloat16"})
        self.assertEqual(self.arguments("cpu", gpus=2), {"dtype": "bfloat16"})

    def test_it_is_spread_over_the_gpus_of_a_replica_that_has_several(self) -> None:
        self.assertEqual(self.arguments(gpus=2)["device_map"], "auto")

    def test_its_table_may_say_how(self) -> None:
        self.assertEqual(self.arguments(gpus=2, device_map="balanced")["device_map"], "balanced")

    def test_what_needs_a_package_that_is_not_there_says_how_to_get_it(self) -> None:
        for options in ({"device_map": "auto"}, {"quantization": "torchao-int8"}):
            with (
                self.subTest(options),
                patch("importlib.util.find_spec", return_value=None),
                self.assertRaisesRegex(ModelUnavailable, "needs the package accelerate.*requirements-quantized.txt"),
            ):
                precision.make_loading_arguments(spec(options=options), "cpu")

    def test_an_unknown_quantization_is_refused_with_those_that_are_known(self) -> None:
        with self.assertRaisesRegex(ModelUnavailable, "must be one of bitsandbytes-8bit, .*, not 'int2'"):
            precision.make_loading_arguments(spec(options={"quantization": "int2"}), "cpu")


class Tf32Tests(TestCase):
    def test_it_holds_for_the_calls_of_its_model_and_no_other_s(self) -> None:
        seen = []

        class Model(nn.Module):  # type: ignore[misc]
            def forward(self, *, fails: bool = False) -> torch.Tensor:
                seen.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
                if fails:
                    raise ValueError("no")
                return torch.ones(1)

        own, other = Model(), Model()
        torch.backends.cudnn.allow_tf32 = True  # as torch has it of itself
        precision.configure_tf32(spec(dtype="tf32"), own)
        precision.configure_tf32(spec(dtype="float32"), other)
        other()
        own()
        other()
        with self.assertRaises(ValueError):
            own(fails=True)
        other()
        self.assertEqual(seen, [(on, on) for on in (False, True, False, True, False)])

    def test_its_weights_are_of_float32_and_its_answers_may_differ_as_those_of_short_types(self) -> None:
        self.assertEqual(spec(dtype="tf32").weights_dtype, "float32")
        self.assertEqual(precision.find_tolerance(spec(dtype="tf32"), nn.Linear(1, 1)), parity.TEN_BITS)

    def test_answers_may_differ_by_what_the_shortest_type_of_the_weights_rounds(self) -> None:
        first_is_long = nn.Sequential(nn.LayerNorm(1), nn.Linear(1, 1).bfloat16())
        for model, expected in (
            (nn.Linear(1, 1), parity.TOLERANCE),
            (nn.Linear(1, 1).double(), parity.TOLERANCE),
            (nn.Linear(1, 1).half(), parity.TEN_BITS),
            (nn.Linear(1, 1).bfloat16(), parity.SHORT_TYPES),
            (first_is_long, parity.SHORT_TYPES),
        ):
            self.assertEqual(precision.find_tolerance(spec(dtype="auto"), model), expected)


class LoadedTests(TestCase):
    """Of a tiny model on a CPU."""

    folder: Path

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        tiny_models.build("text-classification", cls.folder)

    def answer(self, **values: Any) -> Any:
        entry = ModelSpec(name="m", task="text-classification", model=str(self.folder), **values)
        (found,) = loading.load_engine(entry, "cpu").predict(["good day"], {})
        return found

    def test_tf32_answers_as_float32_on_a_cpu(self) -> None:
        self.assertEqual(self.answer(dtype="tf32"), self.answer(dtype="float32"))

    def test_a_map_and_quantized_weights_answer_about_the_same(self) -> None:
        """In a process of its own, where what requirements-quantized.txt lists can be imported."""
        own = {**os.environ, "PYTHONPATH": f"{sys.prefix}/quantized"}
        command = (sys.executable, "-W", "ignore", "-m", "tests.inference.engines.runtime.quantized", str(self.folder))
        done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        plain = self.answer(dtype="float32")
        for options, found in json.loads(done.stdout.splitlines()[-1]).items():
            with self.subTest(options):
                self.assertEqual(found["label"], plain["label"])
                self.assertAlmostEqual(found["score"], plain["score"], delta=0.03)
