import gc
import logging
import math
import sys
import weakref
from collections.abc import Callable
from typing import Any
from unittest import TestCase
from unittest.mock import Mock, patch

from inference.catalog.specs import ModelSpec
from inference.engines.base import Engine
from inference.engines.runtime.engine_calls import RunReport, run_engine_with_isolation
from inference.errors import BadOutput, DeviceFailed, EngineError, InvalidInput, OutOfMemory
from tests.cuda import OutOfMemoryError, gpus
from tests.echo import EchoEngine, expected


def setUpModule() -> None:
    logging.disable(logging.WARNING)
    gc.freeze()  # where memory is short garbage is looked for, and not in all that was ever imported


def tearDownModule() -> None:
    gc.unfreeze()
    logging.disable(logging.NOTSET)


SPEC = ModelSpec(name="echo", engine="tests.echo:EchoEngine")


def echo(items: list[Any], **options: Any) -> RunReport:
    return run_engine_with_isolation(EchoEngine(ModelSpec(name="echo", options=options)), items, {})


def poison(fail: str) -> dict[str, str]:
    return {"text": "poison", "fail": fail}


class FunctionOf(Engine):
    def __init__(self, predict: Callable[[list[Any]], Any]) -> None:
        super().__init__(SPEC)
        self.answer = predict

    def load(self, device: str) -> None:
        pass

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> Any:
        return self.answer(inputs)


class NeedsMore(BaseException):
    """As a panic of Rust is none of Python's exceptions; and what is pickled of it makes no other."""

    def __init__(self, why: str, where: str) -> None:
        super().__init__(f"{why} {where}")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise NotImplementedError


class OneBadInputTests(TestCase):
    def assert_only_fails(
        self, report: RunReport, items: list[Any], culprits: set[int], error: type[Exception]
    ) -> None:
        for index, (item, outcome) in enumerate(zip(items, report.outcomes, strict=True)):
            if index in culprits:
                self.assertIsInstance(outcome, error, f"item {index}")
            else:
                self.assertEqual(outcome, expected(item), f"item {index}")

    def test_a_batch_without_fault_is_one_call(self) -> None:
        report = echo(["a", {"b": 1}, "c"])
        self.assertEqual(report.outcomes, [expected("a"), expected({"b": 1}), expected("c")])
        self.assertEqual(report.calls, 1)
        self.assertIsNone(report.oom_shape)

    def test_one_poison_of_32_costs_at_most_seven_more_calls_wherever_it_is(self) -> None:
        for place in range(32):
            items: list[Any] = [f"text {number}" for number in range(32)]
            items[place] = poison("exception")
            report = echo(items)
            self.assert_only_fails(report, items, {place}, EngineError)
            self.assertLessEqual(report.calls, 1 + 7, f"poison at {place}")

    def test_one_poison_is_found_in_a_batch_of_any_size(self) -> None:
        for size in range(1, 20):
            items: list[Any] = [f"text {number}" for number in range(size)]
            items[size // 2] = poison("exception")
            self.assert_only_fails(echo(items), items, {size // 2}, EngineError)

    def test_several_poisons_fail_and_all_others_succeed(self) -> None:
        for culprits in ({0, 31}, {3, 4, 5}, {1, 8, 16, 30}, set(range(32))):
            items: list[Any] = [poison("exception") if number in culprits else f"text {number}" for number in range(32)]
            report = echo(items)
            self.assert_only_fails(report, items, culprits, EngineError)
            self.assertLessEqual(report.calls, 3 * 7 + 32)

    def test_a_wrong_number_of_answers_is_the_fault_of_the_item_that_causes_it(self) -> None:
        items = ["a", "b", poison("short"), "d"]
        self.assert_only_fails(echo(items), items, {2}, BadOutput)

    def test_an_answer_that_is_not_a_number_fails_alone_in_one_call(self) -> None:
        items = ["a", poison("nan"), "c"]
        report = echo(items)
        self.assert_only_fails(report, items, {1}, BadOutput)
        self.assertEqual(report.calls, 1)

    def test_an_input_refused_in_its_place_keeps_its_error(self) -> None:
        items = ["a", poison("invalid"), "c"]
        report = echo(items)
        self.assert_only_fails(report, items, {1}, InvalidInput)
        self.assertEqual(report.calls, 1)

    def test_whatever_is_raised_fails_alone(self) -> None:
        for error in (NeedsMore("it", "panicked"), Unspeakable("x"), GeneratorExit()):

            def predict(items: list[Any], error: BaseException = error) -> list[Any]:
                if "bad" in items:
                    raise error
                return items

            with self.subTest(type(error).__name__):
                report = run_engine_with_isolation(FunctionOf(predict), ["a", "bad", "c"], {})
                self.assertEqual(report.outcomes[::2], ["a", "c"])
                self.assertIsInstance(report.outcomes[1], EngineError)
                self.assertIn(type(error).__name__, report.outcomes[1].raised)

    def test_what_ends_the_process_does(self) -> None:
        for error in (SystemExit, KeyboardInterrupt):
            with self.assertRaises(error):
                run_engine_with_isolation(FunctionOf(Mock(side_effect=error)), ["a"], {})

    def test_an_answer_of_none_counts_as_an_answer(self) -> None:
        report = run_engine_with_isolation(FunctionOf(lambda items: [None for _ in items]), ["a", "b"], {})
        self.assertEqual(report.outcomes, [None, None])
        self.assertEqual(report.calls, 1)

    def test_an_engine_that_answers_no_list_fails_with_what_would_be_right(self) -> None:
        report = run_engine_with_isolation(FunctionOf(lambda items: "text"), ["a"], {})
        self.assertIn("must answer a list", report.outcomes[0].message)


class MemoryTests(TestCase):
    def test_a_batch_that_does_not_fit_is_halved_and_its_shape_reported(self) -> None:
        report = echo(["abcd efgh"] * 8, max_tokens=4 * lengths_of("abcd efgh"))
        self.assertEqual(report.outcomes, [expected("abcd efgh")] * 8)
        self.assertEqual(report.calls, 3)
        self.assertEqual(report.oom_shape, (8, lengths_of("abcd efgh")))

    def test_the_smallest_shape_that_did_not_fit_is_reported(self) -> None:
        report = echo(["abcd"] * 8, max_tokens=lengths_of("abcd"))
        self.assertEqual(report.outcomes, [expected("abcd")] * 8)
        self.assertEqual(report.oom_shape, (2, lengths_of("abcd")))

    def test_an_item_that_never_fits_fails_alone_and_lowers_no_ceiling(self) -> None:
        items = ["a", "b", poison("oom"), "d"]
        report = echo(items)
        self.assertIsInstance(report.outcomes.pop(2), OutOfMemory)
        self.assertEqual(report.outcomes, [expected(item) for item in "abd"])
        self.assertIsNone(report.oom_shape)

    def test_a_library_without_memory_for_its_handles_is_no_broken_device(self) -> None:
        def predict(items: list[Any]) -> list[Any]:
            if len(items) > 1:
                raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")
            return items

        self.assertEqual(run_engine_with_isolation(FunctionOf(predict), [1, 2], {}).oom_shape, (2, 1))

    def test_python_s_own_memory_error_is_one(self) -> None:
        def predict(items: list[Any]) -> list[Any]:
            if len(items) > 2:
                raise MemoryError
            return items

        report = run_engine_with_isolation(FunctionOf(predict), [1, 2, 3, 4], {})
        self.assertEqual(report.outcomes, [1, 2, 3, 4])
        self.assertEqual(report.oom_shape, (4, 1))


class DeviceTests(TestCase):
    def test_a_device_in_an_error_state_ends_the_run_at_once(self) -> None:
        with self.assertRaises(DeviceFailed) as caught:
            echo(["a", poison("device"), "c"])
        self.assertIn("device-side assert", caught.exception.message)

    def test_so_does_one_that_shows_it_only_as_the_answer_is_read(self) -> None:
        answer = Mock(tolist=Mock(side_effect=RuntimeError("CUDA error: device-side assert triggered")))
        with self.assertRaises(DeviceFailed):
            run_engine_with_isolation(FunctionOf(lambda items: [answer for _ in items]), ["a"], {})

    def test_it_is_known_by_its_type_too(self) -> None:
        accelerator_error = type("AcceleratorError", (RuntimeError,), {})
        with self.assertRaises(DeviceFailed):
            run_engine_with_isolation(
                FunctionOf(Mock(side_effect=accelerator_error("the launch timed out"))), ["a"], {}
            )


class ProbeTests(TestCase):
    """Where torch uses a GPU, a known good call tells whether it still computes, and no words do."""

    def setUp(self) -> None:
        self.gpus = self.enterContext(gpus())

    def fails(self, message: str, items: list[Any], *, broken: bool) -> RunReport:
        def predict(items: list[Any]) -> list[Any]:
            self.gpus.broken = RuntimeError("CUDA error: unknown error") if broken else None
            raise RuntimeError(message)

        return run_engine_with_isolation(FunctionOf(predict), items, {})

    def test_a_device_that_computes_no_more_is_known_whatever_was_raised(self) -> None:
        for message in (
            "CUDA driver error: unknown error",
            "Triton Error [CUDA]: misaligned address",
            "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
            "CUDA out of memory. Tried to allocate",
        ):
            with self.subTest(message), self.assertRaises(DeviceFailed):
                self.fails(message, ["a"], broken=True)
            self.gpus.broken = None

    def test_one_that_computes_is_not_broken_whatever_was_raised(self) -> None:
        for message, error in (
            ("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling cublasGemmEx", EngineError),
            ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling cublasCreate", OutOfMemory),
            ("CUDA error: invalid configuration argument", EngineError),
        ):
            with self.subTest(message):
                self.assertIsInstance(self.fails(message, ["a"], broken=False).outcomes[0], error)

    def test_a_full_memory_is_no_broken_device(self) -> None:
        self.gpus.broken = OutOfMemoryError("CUDA out of memory")
        report = run_engine_with_isolation(FunctionOf(Mock(side_effect=ValueError("no"))), ["a"], {})
        self.assertIsInstance(report.outcomes[0], EngineError)

    def test_a_full_memory_does_not_hide_another_device_that_is_broken(self) -> None:
        self.gpus.count = 2
        failures = [OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error")]
        broken = patch.object(sys.modules["torch"].cuda, "synchronize", side_effect=failures)
        with broken, self.assertRaises(DeviceFailed):
            run_engine_with_isolation(FunctionOf(Mock(side_effect=ValueError("no"))), ["a"], {})

    def test_an_error_that_comes_as_the_answer_is_read_is_looked_into(self) -> None:
        def break_device() -> Any:
            self.gpus.broken = RuntimeError("CUDA error")
            raise RuntimeError("Triton Error [CUDA]: an illegal instruction")

        with self.assertRaises(DeviceFailed):
            run_engine_with_isolation(FunctionOf(lambda items: [Mock(tolist=break_device) for _ in items]), ["a"], {})

    def test_so_is_one_that_comes_as_the_cache_is_emptied(self) -> None:
        def breaks() -> None:
            self.gpus.broken = RuntimeError("CUDA driver error: unknown error")
            raise self.gpus.broken

        with patch.object(sys.modules["torch"].cuda, "empty_cache", breaks), self.assertRaises(DeviceFailed):
            run_engine_with_isolation(FunctionOf(Mock(side_effect=OutOfMemoryError("CUDA out of memory"))), ["a"], {})

    def test_what_the_call_held_is_let_go_before_the_cache_is_emptied(self) -> None:
        held: list[weakref.ref[Any]] = []
        alive: list[bool] = []

        def predict(items: list[Any]) -> list[Any]:
            activations = type("Activations", (), {})()
            held.append(weakref.ref(activations))
            raise OutOfMemoryError("CUDA out of memory")

        emptied = patch.object(sys.modules["torch"].cuda, "empty_cache", lambda: alive.append(held[-1]() is not None))
        with emptied:
            run_engine_with_isolation(FunctionOf(predict), ["a", "b"], {})
        self.assertEqual(set(alive), {False})

    def test_so_is_what_is_held_by_any_error_behind_it_and_by_one_that_is_its_own_cause(self) -> None:
        held: list[weakref.ref[Any]] = []
        alive: list[bool] = []

        def computes() -> None:
            activations = type("Activations", (), {})()
            held.append(weakref.ref(activations))
            raise OutOfMemoryError("CUDA out of memory")

        def behind(items: list[Any]) -> None:
            try:
                computes()
            except OutOfMemoryError:
                raise OutOfMemoryError("CUDA out of memory") from ValueError("told")

        def own_cause(items: list[Any]) -> None:
            try:
                computes()
            except OutOfMemoryError as error:
                raise error from error

        emptied = patch.object(sys.modules["torch"].cuda, "empty_cache", lambda: alive.append(held[-1]() is not None))
        for predict in (behind, own_cause):
            with self.subTest(predict.__name__), emptied:
                report = run_engine_with_isolation(FunctionOf(predict), ["a", "b"], {})
                self.assertIsInstance(report.outcomes[0], OutOfMemory)
                self.assertEqual(set(alive), {False})

    def test_an_item_that_fits_once_the_cache_is_empty_succeeds(self) -> None:
        def predict(items: list[Any]) -> list[Any]:
            if not self.gpus.emptied:
                raise OutOfMemoryError("CUDA out of memory")
            return items

        report = run_engine_with_isolation(FunctionOf(predict), ["a"], {})
        self.assertEqual((report.outcomes, report.calls), (["a"], 2))


class DetailTests(TestCase):
    def detail(self, error: Exception) -> str:
        def predict(items: list[Any]) -> list[Any]:
            raise error

        return str(run_engine_with_isolation(FunctionOf(predict), ["a"], {}).outcomes[0].raised)

    def test_the_author_reads_type_and_message(self) -> None:
        self.assertEqual(self.detail(ValueError("labels must be sorted")), "ValueError: labels must be sorted")

    def test_folders_and_secrets_are_left_out(self) -> None:
        detail = self.detail(
            OSError("no /home/ann/models/bert/config.json at https://ann:pw@hub/x, token=abc hf_abcdefghij")
        )
        self.assertEqual(detail, "OSError: no config.json at https://***@hub/x, token=*** ***")

    def test_tokens_of_text_are_no_secret(self) -> None:
        detail = self.detail(ValueError("a tokenizer without a padding token cannot batch; bearer abc.def"))
        self.assertEqual(detail, "ValueError: a tokenizer without a padding token cannot batch; bearer ***")

    def test_long_messages_are_cut(self) -> None:
        self.assertEqual(len(self.detail(ValueError("x" * 9000))), 2000)


class PlainTests(TestCase):
    def answer(self, value: Any) -> Any:
        return run_engine_with_isolation(FunctionOf(lambda items: [value]), ["a"], {}).outcomes[0]

    def test_numpy_values_become_json_values(self) -> None:
        import numpy as np

        value = {"score": np.float32(0.5), "ids": np.array([1, 2]), 3: (np.bool_(True), [0.25, 0.5])}
        self.assertEqual(self.answer(value), {"score": 0.5, "ids": [1, 2], "3": [True, [0.25, 0.5]]})

    def test_infinity_anywhere_is_refused(self) -> None:
        for value in (math.inf, [0.0, -math.inf], {"a": [{"b": math.nan}]}, [math.inf, -math.inf]):
            self.assertIsInstance(self.answer(value), BadOutput)

    def test_large_numbers_are_finite_though_their_sum_is_not(self) -> None:
        self.assertEqual(self.answer([1.7e308, 1.7e308]), [1.7e308, 1.7e308])

    def test_what_json_cannot_carry_is_refused_by_name(self) -> None:
        self.assertIn("set", self.answer({1, 2}).message)


def lengths_of(text: str) -> int:
    from inference.catalog.sizes.lengths import measure_inputs

    return measure_inputs(SPEC, text)[1]
