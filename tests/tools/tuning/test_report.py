import dataclasses
import math
import re
import tempfile
from pathlib import Path
from unittest import TestCase
from unittest.mock import Mock

from inference.catalog import reader
from inference.catalog.parameters import ParameterSpec
from inference.catalog.specs import ModelSpec
from inference.engines.inputs import media
from tools.tuning import processor, report, samples
from tools.tuning.measurements import (
    Arrangement,
    Grid,
    Measurement,
    Variant,
    choose_lengths,
    choose_sizes,
    compare_answers,
)

SPEC = ModelSpec(name="m", task="text-classification", max_batch_size=8, max_length=256)


def grid(fixed_s: float, per_token_s: float, too_large: list[tuple[int, int]] | None = None) -> Grid:
    """Of a model whose calls cost a fixed part and a part a padded token."""
    shapes = [(size, length) for size in (1, 2, 4, 8, 16) for length in (8, 128)]
    large = too_large or []
    fits = [shape for shape in shapes if shape not in large]
    return Grid(seconds={(s, n): fixed_s + per_token_s * s * n for s, n in fits}, too_large=large)


class ShapesTests(TestCase):
    def test_sizes_are_tried_beyond_the_limit_of_the_catalog(self) -> None:
        self.assertEqual(choose_sizes(SPEC), [1, 2, 4, 8, 16])

    def test_lengths_end_where_the_model_does(self) -> None:
        self.assertEqual(choose_lengths(SPEC, []), [8, 32, 128, 256])

    def test_own_inputs_give_their_own_lengths(self) -> None:
        self.assertEqual(len(choose_lengths(SPEC, ["a", "a b c d e f", "a b " * 60, "a"])), 3)

    def test_an_image_that_is_made_up_can_be_read(self) -> None:
        made_up = samples.make_sample(ModelSpec(name="m", task="image-classification"), Mock(), 1, [])
        self.assertEqual(media.decode_image(made_up).size, (480, 360))


class RecommendationTests(TestCase):
    def test_without_a_fixed_cost_batches_are_not_worth_it(self) -> None:
        self.assertIn("max_batch_size = 1", report.make_catalog_lines(SPEC, grid(0.0, 0.001)))

    def test_with_a_high_fixed_cost_the_largest_batch_is(self) -> None:
        lines = report.make_catalog_lines(SPEC, grid(1.0, 0.00001))
        self.assertIn("max_batch_size = 16", lines)
        self.assertIn(f"max_batch_tokens = {16 * 128}", lines)

    def test_what_did_not_fit_lowers_the_tokens(self) -> None:
        lines = report.make_catalog_lines(SPEC, grid(1.0, 0.00001, too_large=[(16, 128)]))
        self.assertIn(f"max_batch_tokens = {8 * 128}", lines)
        lines = report.make_catalog_lines(SPEC, grid(1.0, 0.00001, too_large=[(size, 128) for size in (2, 4, 8, 16)]))
        self.assertIn(f"max_batch_tokens = {2 * 128 - 1}", lines)

    def test_the_time_limit_has_slack_over_the_slowest_call(self) -> None:
        self.assertIn("time_limit_s = 21", report.make_catalog_lines(SPEC, grid(1.0, 0.00001)))

    def test_the_lines_are_a_catalog(self) -> None:
        lines = [*report.make_catalog_lines(SPEC, grid(0.1, 0.001)), 'task = "text-classification"', 'model = "a/b"']
        self.assertEqual(reader.parse_catalog("\n".join(lines))["m"].max_batch_size, 16)


class GeneratingTests(TestCase):
    spec = dataclasses.replace(SPEC, task="text-generation")

    def test_rows_are_worth_it_until_more_of_them_bring_no_more_tokens(self) -> None:
        steps = {(1, 32): 0.02, (2, 32): 0.02, (4, 32): 0.021, (8, 32): 0.042, (16, 32): 0.084}
        lines = report.make_generating_lines(self.spec, Grid(seconds=steps))
        self.assertIn("max_batch_size = 4", lines)
        self.assertIn(f"max_batch_tokens = {4 * (32 + 128)} ", lines[2])
        self.assertIn(f"time_limit_s = {math.ceil(2 * 1024 * 0.021)} ", lines[3])

    def test_a_catalog_that_allows_short_answers_only_needs_little_time(self) -> None:
        allowed = {"max_new_tokens": ParameterSpec(type="integer", min=1, max=16)}
        lines = report.make_generating_lines(dataclasses.replace(self.spec, parameters=allowed), grid(0.02, 0.0))
        self.assertIn("time_limit_s = 10 ", lines[3])

    def test_what_did_not_fit_lowers_the_cache(self) -> None:
        lines = report.make_generating_lines(self.spec, grid(1.0, 0.00001, too_large=[(16, 128)]))
        self.assertIn(f"max_batch_tokens = {16 * (128 + 128) - 1} ", lines[2])

    def test_the_lines_are_a_catalog(self) -> None:
        lines = [*report.make_generating_lines(self.spec, grid(0.1, 0.0)), 'task = "text-generation"', 'model = "a/b"']
        self.assertEqual(reader.parse_catalog("\n".join(lines))["m"].max_batch_size, 16)

    def test_the_time_of_a_step_is_shown_for_every_number_of_rows(self) -> None:
        _, short, long = report.format_steps(grid(0.1, 0.001, too_large=[(16, 128)]))
        self.assertEqual(short.split(), ["8", "tokens", "108", "116", "132", "164", "228"])
        self.assertEqual(long.split()[-1], "-")


class TextTests(TestCase):
    def test_the_table_has_a_row_a_length_and_says_what_was_too_large(self) -> None:
        header, short, long = report.format_table(grid(0.1, 0.001, too_large=[(16, 128)]))
        self.assertEqual(re.findall(r"x \d+", header), ["x 1", "x 2", "x 4", "x 8", "x 16"])
        self.assertIn("9.3", short)
        self.assertIn("too large", long)

    def test_the_longest_bar_is_the_best_rate(self) -> None:
        lines = list(report.format_plot(grid(0.1, 0.001)))
        bars = [line.count("█") for line in lines if " x " in line]
        self.assertEqual(max(bars), report.BAR)
        self.assertTrue(lines[1].endswith("1.00 times one at a time"))

    def test_the_fastest_of_those_with_the_same_answers_is_recommended(self) -> None:
        one, two = Arrangement(replicas=1, threads=2), Arrangement(replicas=2, threads=1)
        torch, short = Variant(backend="torch", precision="float32"), Variant(backend="openvino", precision="bfloat16")
        shorter, broken = (
            Variant(backend="openvino", precision="int8"),
            Variant(backend="openvino", precision="float32"),
        )
        rates = {one: {1: 80.0, 8: 144.0}, two: {1: 132.0, 8: 185.0}}
        trials = {
            torch: Measurement(same=8, answers=8, rates=rates),
            short: Measurement(same=8, answers=8, rates={two: {1: 264.0, 8: 370.0}}, memory=2**20, largest_change=0.01),
            shorter: Measurement(same=7, answers=8, rates={two: {1: 500.0, 8: 900.0}}),
            broken: Measurement(problem="torch computes it in float32, and not openvino"),
        }
        self.assertEqual(report.choose_trial(trials), (short, two))
        self.assertIn('backend = "openvino"', report.make_choice_lines(SPEC, trials))
        self.assertIn(
            'precision = "bfloat16"  # 8 of 8 answers are the same', report.make_choice_lines(SPEC, trials)[1]
        )
        self.assertEqual(report.choose_trial({torch: trials[torch]}), (torch, two))
        self.assertEqual(report.make_choice_lines(SPEC, {torch: trials[torch], shorter: trials[shorter]}), [])
        table = "\n".join(report.format_trials_table(trials, "items"))
        self.assertRegex(table, r"openvino +bfloat16 +2 x 1 +264.0 +370.0 +312.5 +1 +8 of 8 +0.01")
        self.assertIn("openvino  float32    torch computes it in float32, and not openvino", table)
        self.assertIn(report.BAR * "█", list(report.format_trials_plot(trials))[2])

    def test_the_lines_take_the_place_of_what_the_table_says(self) -> None:
        plain, short = (Variant(backend="torch", precision=name) for name in ("float32", "bfloat16"))
        for says, best, expected in (
            ({}, plain, []),
            ({}, short, ['dtype = "bfloat16"']),
            ({"precision": "float32"}, short, ['precision = "bfloat16"']),
            ({"dtype": "bfloat16"}, plain, ['dtype = "float32"']),
            ({"backend": "openvino", "precision": "int8"}, plain, ['backend = "torch"', 'precision = "float32"']),
        ):
            trial = Measurement(same=8, answers=8, rates={Arrangement(replicas=1, threads=1): {1: 9.0}})
            lines = report.make_choice_lines(dataclasses.replace(SPEC, **says), {best: trial})  # type: ignore[arg-type]
            self.assertEqual([line.partition("  #")[0] for line in lines], expected)

    def test_what_the_processor_can_do_is_described(self) -> None:
        cpuinfo = Path(self.enterContext(tempfile.NamedTemporaryFile("w+")).name)
        for text, expected in (
            (
                "model name\t: Old\nflags\t\t: sse2 avx2\n",
                "Old has AVX2, but nothing for bfloat16 or int8: what these gain is measured.",
            ),
            ("model name: New\nflags: avx2 avx512_vnni amx_tile\n", "New has AVX2, VNNI (int8), AMX (int8 and bf16)."),
            ("Features : asimd i8mm\n", "This processor has NEON, I8MM (int8)."),
        ):
            cpuinfo.write_text(text)
            self.assertEqual(processor.describe_processor(cpuinfo), expected)
        self.assertIn("does not say", processor.describe_processor(Path("/no/such/file")))

    def test_a_number_of_the_plot_stands_in_the_table(self) -> None:
        rates = {Arrangement(replicas=1, threads=1): {1: 80.0, 8: 144.0}}
        trials = {Variant(backend="torch", precision="float32"): Measurement(same=8, answers=8, rates=rates)}
        [drawn] = report.format_trials_plot(trials)
        self.assertIn(f" {drawn.split()[-1]} ", "\n".join(report.format_trials_table(trials, "items")))

    def test_the_load_of_others_is_reported(self) -> None:
        for load, cores, expected in ((0.2, 1, False), (0.9, 1, True), (0.9, 8, False), (3.0, 8, True)):
            self.assertEqual(bool(list(processor.warn_of_other_load(cores, load))), expected, (load, cores))
        self.assertIn("3.0 of 8 cores", next(processor.warn_of_other_load(8, 3.0)))

    def test_differences_find_numbers_and_labels(self) -> None:
        first = [{"label": "a", "score": 0.5, "ids": [1, 2]}, {"label": "b", "score": 0.25, "ids": []}]
        second = [{"label": "a", "score": 0.75, "ids": [1, 2]}, {"label": "c", "score": 0.25, "ids": []}]
        self.assertEqual(sorted(compare_answers(first, second)), [0.0, 0.25, float("inf")])
