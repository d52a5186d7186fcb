"""What is measured where there is a GPU, whose memory and speed are made up."""

from collections.abc import Callable
from typing import Any, cast
from unittest import TestCase
from unittest.mock import patch

from inference.catalog.specs import ModelSpec
from inference.engines.backends import packages
from inference.worker.replicas.gpus import Device
from tools.tuning import measurements, replica, report
from tools.tuning.measurements import Arrangement, Grid, Variant
from tools.tuning.replica import CannotMeasure, Replica, Setup

Length = int | tuple[int, ...]


class Gpu:
    """A replica on one that is idle below `find_knee` tokens and has room for so many in a call."""

    def __init__(self, *, room: int, knee: int = 1000) -> None:
        self.room, self.knee = room, knee
        self.shapes: list[tuple[int, Length]] = []

    def run_measurement(self, _: Callable[..., Any], size: int, length: Length, budget_s: float) -> float | None:
        self.shapes.append((size, length))
        tokens = size * (length if isinstance(length, int) else max(length))
        return None if tokens > self.room else 1e-3 * max(1.0, tokens / self.knee)

    def grid(self, *lengths: int, on_gpu: bool = True) -> Grid:
        gpu = cast("Replica", self)
        return measurements.measure_grid(
            gpu, measurements.ITEMS, [1, 2, 4], lengths, 0.0, lambda _: None, on_gpu=on_gpu
        )


class GridTests(TestCase):
    def test_larger_batches_are_tried_while_they_bring_more(self) -> None:
        self.assertEqual(Gpu(room=10**9).grid(10).sizes, [1, 2, 4, 8, 16, 32, 64, 128, 256])
        self.assertEqual(Gpu(room=10**9).grid(10, on_gpu=False).sizes, [1, 2, 4])

    def test_none_is_tried_that_models_toml_cannot_say(self) -> None:
        self.assertEqual(Gpu(room=10**9, knee=10**9).grid(10).sizes[-1], measurements.MOST_ITEMS)

    def test_where_one_does_not_fit_it_is_halved_towards_the_largest_that_does(self) -> None:
        found = Gpu(room=450, knee=10**9).grid(10)
        self.assertEqual((found.sizes, found.too_large), ([1, 2, 4, 8, 16, 32, 40], [(64, 10), (48, 10)]))
        spec = ModelSpec(name="m", task="text-classification")
        self.assertIn("max_batch_tokens = 400", report.make_catalog_lines(spec, found))

    def test_none_is_tried_that_is_larger_than_one_that_did_not_fit(self) -> None:
        gpu = Gpu(room=30, knee=10**9)
        gpu.grid(10, 20, on_gpu=False)
        self.assertEqual(gpu.shapes, [(1, 10), (2, 10), (4, 10), (1, 20), (2, 20)])

    def test_lengths_are_mixed_as_far_as_the_longest_fit(self) -> None:
        found = Gpu(room=700, knee=10**9).grid(10, 20)
        self.assertEqual(sorted(found.mixed), [2, 4, 8, 16, 32])
        self.assertRegex("\n".join(report.format_table(found)), r"mixed +- +2000.0 +4000.0")


class TrialTests(TestCase):
    def setUp(self) -> None:
        spec = ModelSpec(name="m", task="text-classification")
        self.setup = Setup(spec=spec, device=Device(name="cuda:0", visible="GPU-1"), threads=1)

    def test_tf32_is_tried(self) -> None:
        precisions = dict.fromkeys(choice.precision for choice in measurements.list_variants(self.setup))
        self.assertEqual([*precisions], ["float32", "tf32", "bfloat16"])

    def test_replicas_that_do_not_fit_beside_each_other_are_left_out(self) -> None:
        one, two = Arrangement(replicas=1, threads=2), Arrangement(replicas=2, threads=1)

        def throughput(setup: Any, unit: Any, replicas: list[Any], *_: Any) -> dict[int, float]:
            if len(replicas) > room:
                raise CannotMeasure("out of memory")
            return {1: 10.0}

        class Loaded:
            def __init__(self, setup: Setup) -> None: ...
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: object) -> None: ...
            def wait_until_loaded(self) -> None: ...
            def run_measurement(self, what: Any, *_: Any) -> Any:
                return {replica.read_engine_note: said, replica.measure_memory: 1, replica.answer_inputs: [0.5]}[what]

        def tried() -> measurements.Measurement:
            choice = Variant(backend="torch", precision="float32")
            unit = measurements.ITEMS
            return measurements.measure_variant(self.setup, unit, choice, None, [one, two], [1], 0.0, lambda _: None)[0]

        said = ""
        with (
            patch.object(measurements, "measure_throughput", throughput),
            patch.object(measurements, "Replica", Loaded),
        ):
            room = 1
            self.assertEqual(list(tried().rates), [one])
            room = 0
            with self.assertRaises(CannotMeasure):
                tried()
            said = f"{packages.REFUSED} bfloat16."
            self.assertEqual(tried(), measurements.Measurement(problem=said))
