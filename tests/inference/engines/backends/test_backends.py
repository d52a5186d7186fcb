"""A model computed by OpenVINO answers as torch does, in a batch as alone; where it does not, torch computes it."""

from __future__ import annotations

import gc
import importlib.util
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import openvino
import torch
from django.test import override_settings

from inference.catalog import tasks
from inference.catalog.specs import ModelSpec
from inference.engines import loading
from inference.engines.artifacts import disk_cache
from inference.engines.backends import installation, openvino_forward, openvino_graph
from inference.engines.runtime.engine_calls import run_engine_with_isolation
from inference.errors import EngineError, ModelUnavailable
from tests import tiny_models
from tests.inference.broker.test_embedded_data_folder import mount_small_disk
from tests.inference.engines.test_transformers import EqualTestCase

TEXTS = [
    "the cat runs in paris",
    "a dog",
    "it was a good house and the red cat sleeps on it, was it not? a big green house in france",
    "small",
    "a good dog in paris",
]
INPUTS: dict[str, list[Any]] = {
    "text-ranking": [{"text": TEXTS[0], "text_pair": text} for text in TEXTS],
    "fill-mask": [f"[MASK] {text}" for text in TEXTS],
    "image-classification": [tiny_models.png(), tiny_models.png((20, 200, 30)), tiny_models.png((9, 9, 9), (50, 50))],
    "audio-classification": [tiny_models.wav(), tiny_models.wav(880), tiny_models.wav(300, 0.5)],
}
PARAMETERS: dict[str, Any] = {"zero-shot-classification": {"candidate_labels": ["red", "a good house"]}}
CLASSIFICATION = "text-classification"
WIDE = 0.2  # a tolerance: processors with bfloat16 round the wide weights of the small models in their own ways


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def tearDownModule() -> None:
    KeptTests.graphs.clear()
    _folder().cleanup()
    _folder.cache_clear()


class CompiledCase(EqualTestCase):
    answers_of_torch: dict[str, list[Any]] = {}  # by task: the small models have the same weights each time

    def setUp(self) -> None:
        data = self.enterContext(tempfile.TemporaryDirectory())
        self.data = Path(data)
        self.enterContext(override_settings(DATA_DIR=self.data))

    def folder(self, task: str) -> Path:
        folder = Path(_folder().name) / task
        return folder if folder.exists() else tiny_models.build(task, folder)

    def loaded(self, task: str = CLASSIFICATION, **values: Any) -> Any:
        values = {"backend": "openvino", "task": task, "model": str(self.folder(task)), **values}
        return loading.load_engine(ModelSpec(name="m", **values), "cpu")

    def predict(self, engine: Any, task: str = CLASSIFICATION, inputs: list[Any] | None = None) -> list[Any]:
        inputs = INPUTS.get(task, TEXTS) if inputs is None else inputs
        report = run_engine_with_isolation(engine, inputs, PARAMETERS.get(task, {}))
        self.assertEqual(report.calls, 1)
        return report.outcomes

    def torch_answers(self, task: str = CLASSIFICATION) -> list[Any]:
        if task not in self.answers_of_torch:
            self.answers_of_torch[task] = self.predict(self.loaded(task, backend="torch"), task)
        return self.answers_of_torch[task]

    def model(self, engine: Any) -> Any:
        return getattr(engine, "model", None) or engine.pipe.model

    def held(self, engine: Any) -> int:
        """Bytes of torch's weights."""
        return sum(weights.untyped_storage().nbytes() for weights in self.model(engine).parameters())

    def computes(self, engine: Any) -> bool:
        model = self.model(engine)
        computes = isinstance(model.forward, openvino_forward.OpenVINOForward)
        self.assertEqual(engine.backend, "openvino" if computes else "torch")
        return computes


class AnswersTests(CompiledCase):
    def test_each_task_that_can_be_compiled_answers_as_with_torch_and_in_a_batch_as_alone(self) -> None:
        for task in tasks.list_backend_tasks():
            if task == tasks.find_task(task).name:
                with self.subTest(task):
                    engine = self.loaded(task)
                    self.assertTrue(self.computes(engine), engine.note)
                    found = self.predict(engine, task)
                    self.assert_equal(found, self.torch_answers(task))
                    alone = [self.predict(engine, task, [value])[0] for value in INPUTS.get(task, TEXTS)]
                    self.assert_equal(found, alone)

    def test_sentence_embeddings_are_computed_too(self) -> None:
        values = {"engine": "inference.engines.embeddings:SentenceEmbeddings"}
        engine = self.loaded("feature-extraction", **values)
        self.assertTrue(self.computes(engine), engine.note)
        expected = self.predict(self.loaded("feature-extraction", backend="torch", **values))
        self.assert_equal(self.predict(engine), expected)
        self.assert_equal([self.predict(engine, inputs=[text])[0] for text in TEXTS], expected)

    def test_the_page_says_how_near_the_answers_are(self) -> None:
        note = self.loaded().note
        self.assertRegex(note, r"openvino computes it in float32: 12 of 12 labels are those of torch .* at most \S+ of")

    def test_the_page_says_where_the_processor_lacks_the_precision(self) -> None:
        has_it = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        expected = "in bfloat16: 12 of" if has_it else "in float32, as this processor has no bfloat16: 12 of"
        self.assertIn(f"openvino computes it {expected}", self.loaded(precision="bfloat16", tolerance=WIDE).note)

    def test_each_item_of_a_batch_costs_its_own(self) -> None:
        self.assertFalse(self.loaded().padded)

    def test_in_int8_a_batch_answers_as_each_alone(self) -> None:
        engine = self.loaded(precision="int8")
        self.assertTrue(self.computes(engine), engine.note)
        together, alone = self.predict(engine), [self.predict(engine, inputs=[text])[0] for text in TEXTS]
        for one, other in zip(together, alone, strict=True):
            self.assertEqual(one["label"], other["label"])
            self.assertAlmostEqual(one["score"], other["score"], delta=0.02)

    def test_where_neighbours_change_an_answer_each_row_runs_alone(self) -> None:
        with patch.object(installation, "_has_batch_parity", side_effect=[False, True]):
            engine = self.loaded()
        with patch.object(engine.pipe.model.forward, "request", wraps=engine.pipe.model.forward.request) as request:
            self.assert_equal(self.predict(engine), self.torch_answers())
        self.assertEqual(request.infer.call_count, len(TEXTS))


class ShortTypesTests(CompiledCase):
    """torch in bfloat16, by `precision`."""

    def loaded_short(self, task: str = CLASSIFICATION, **values: Any) -> Any:
        return self.loaded(task, backend="torch", precision="bfloat16", **values)

    def test_the_page_says_how_near_its_answers_are(self) -> None:
        for task in (CLASSIFICATION, "fill-mask", "image-classification", "feature-extraction"):
            engine = self.loaded_short(task, tolerance=WIDE)
            with self.subTest(task):
                labels = "" if task == "feature-extraction" else r"\d+ of \d+ labels are those of torch in float32, "
                self.assertRegex(engine.note, f"torch computes it in bfloat16: {labels}numbers differ by at most")
                self.assertEqual({part.dtype for part in self.model(engine).parameters()}, {torch.bfloat16})
                self.predict(engine, task)

    def test_beyond_the_tolerance_it_is_computed_in_float32(self) -> None:
        with self.assertLogs(installation.logger, "WARNING") as logs:
            engine = self.loaded_short(tolerance=1e-6)
        self.assertRegex(engine.note, r"^torch computes it in float32, and not torch in bfloat16: .* where 1e-06 is al")
        self.assertIn(engine.note, logs.output[0])
        self.assert_equal(self.predict(engine), self.torch_answers())

    def test_what_generates_or_says_dtype_is_not_compared(self) -> None:
        self.assertEqual(self.loaded(backend="torch", dtype="bfloat16").note, "")
        engine = self.loaded("text-generation", backend="torch", precision="bfloat16")
        self.assertNotIn("torch computes it", engine.note)


class FallbackTests(CompiledCase):
    def test_beyond_the_tolerance_torch_computes_it(self) -> None:
        with self.assertLogs(installation.logger, "WARNING") as logs:
            engine = self.loaded(precision="int8", tolerance=1e-6)
        self.assertFalse(self.computes(engine))
        self.assertRegex(engine.note, r"^torch computes it in float32, and not openvino in int8: .* where 1e-06 is al")
        self.assertIn(engine.note, logs.output[0])
        self.assert_equal(self.predict(engine), self.torch_answers())

    def test_what_raises_while_it_is_exported_or_called_leaves_torch(self) -> None:
        for broken in (
            patch.object(openvino_graph, "export_graph", side_effect=RuntimeError("no such operation")),
            patch.object(openvino_forward.OpenVINOForward, "__call__", side_effect=RuntimeError("out of luck")),
        ):
            shutil.rmtree(self.folder(CLASSIFICATION) / installation.HOME, ignore_errors=True)
            with broken, self.assertLogs(installation.logger, "WARNING"):
                engine = self.loaded()
            self.assert_equal(self.predict(engine), self.torch_answers())

    def test_what_raises_in_a_later_call_leaves_torch(self) -> None:
        engine, expected = self.loaded(), self.torch_answers()
        with (
            patch.object(openvino_forward.OpenVINOForward, "__call__", side_effect=RuntimeError),
            self.assertLogs("inference.engines"),
        ):
            self.assert_equal(self.predict(engine), expected)

    def test_without_the_package_it_says_what_to_install(self) -> None:
        find_spec = importlib.util.find_spec
        missing = patch.object(
            importlib.util, "find_spec", lambda name: None if name == "openvino" else find_spec(name)
        )
        with missing, self.assertRaisesRegex(ModelUnavailable, "pip install --no-deps -r requirements-openvino.txt"):
            self.loaded()


class WeightsTests(CompiledCase):
    """Of torch, beside another backend."""

    def failing(self) -> Any:
        return patch.object(openvino_forward.OpenVINOForward, "__call__", side_effect=RuntimeError)

    def test_they_are_let_go_where_another_backend_computes(self) -> None:
        for task, values in (
            (CLASSIFICATION, {}),
            ("fill-mask", {"precision": "bfloat16", "tolerance": WIDE}),
            ("image-classification", {}),
            ("feature-extraction", {"engine": "inference.engines.embeddings:SentenceEmbeddings"}),
        ):
            with self.subTest(task):
                engine = self.loaded(task, **values)
                self.assertTrue(self.computes(engine), engine.note)
                self.assertEqual(self.held(engine), 0)

    def test_where_torch_computes_they_stay(self) -> None:
        self.assertGreater(self.held(self.loaded(backend="torch")), 0)
        with self.assertLogs(installation.logger, "WARNING"):
            self.assertGreater(self.held(self.loaded(precision="int8", tolerance=1e-6)), 0)

    def test_they_are_there_again_when_a_call_fails_and_answer_as_before(self) -> None:
        for task, values in (
            (CLASSIFICATION, {}),
            ("fill-mask", {}),
            ("feature-extraction", {"engine": "inference.engines.embeddings:SentenceEmbeddings"}),
        ):
            with self.subTest(task):
                expected = self.predict(self.loaded(task, **{**values, "backend": "torch"}), task)
                engine = self.loaded(task, **values)
                with self.failing(), self.assertLogs("inference.engines", "WARNING"):
                    self.assert_equal(self.predict(engine, task), expected)
                self.assertGreater(self.held(engine), 0)
                self.assert_equal(self.predict(engine, task), expected)

    def test_they_go_again_where_the_input_was_at_fault(self) -> None:
        engine = self.loaded()
        with self.assertRaises(TypeError):
            engine.shortcuts.guard_call(self._refuse)
        self.assertTrue(self.computes(engine))
        self.assertEqual(self.held(engine), 0)

    def _refuse(self) -> list[Any]:
        raise TypeError("bad input")

    def test_where_they_cannot_be_loaded_again_the_call_fails_and_the_next_is_answered(self) -> None:
        model = shutil.copytree(self.folder(CLASSIFICATION), self.data / "model")
        engine, expected = self.loaded(model=str(model)), self.torch_answers()
        (model / "model.safetensors").rename(model / "away")
        with self.failing(), self.assertLogs("inference.engines"):
            outcomes = run_engine_with_isolation(engine, TEXTS, {}).outcomes
        self.assertTrue(all(isinstance(outcome, EngineError) for outcome in outcomes), outcomes)
        self.assertTrue(self.computes(engine))
        self.assert_equal(self.predict(engine), expected)


class KeptTests(CompiledCase):
    graphs: dict[bool, Any] = {}  # of the one model, by whether its weights are of int8

    def setUp(self) -> None:
        super().setUp()
        trace = openvino_graph.export_graph

        def exported(*arguments: Any, short: bool) -> Any:
            if short not in self.graphs:
                self.graphs[short] = trace(*arguments, short=short)
            return self.graphs[short]

        self.enterContext(patch.object(openvino_graph, "export_graph", exported))

    def test_it_is_exported_once(self) -> None:
        self.loaded()
        with patch.object(openvino_graph, "export_graph", side_effect=AssertionError):
            self.assertTrue(self.computes(self.loaded()))

    def test_it_is_held_for_as_long_as_the_model_is_loaded(self) -> None:
        model = shutil.copytree(self.folder(CLASSIFICATION), self.data / "model")
        shutil.rmtree(model / installation.HOME, ignore_errors=True)
        engine = self.loaded(model=str(model))
        (used,) = (path for path in (model / installation.HOME).iterdir() if path.is_dir())
        with patch.object(disk_cache, "IDLE_S", -3600.0):
            self.loaded(model=str(model), precision="int8")
            self.assertTrue(used.exists())
            del engine
            gc.collect()
            with patch.object(openvino_graph, "list_cpu_features", return_value=["another"]):
                self.loaded(model=str(model))
        self.assertFalse(used.exists())

    def test_another_cpu_weights_or_precision_have_an_export_of_their_own(self) -> None:
        model = shutil.copytree(self.folder(CLASSIFICATION), self.data / "model")
        shutil.rmtree(model / installation.HOME, ignore_errors=True)
        exports: set[str] = set()

        def new() -> int:
            found = {path.name for path in (model / installation.HOME).iterdir() if path.is_dir()}
            count = len(found - exports)
            exports.update(found)
            return count

        self.loaded(model=str(model))
        new()
        self.loaded(model=str(model))
        self.assertEqual(new(), 0)
        self.loaded(model=str(model), precision="int8")
        self.assertEqual(new(), 1)
        with patch.object(openvino_graph, "list_cpu_features", return_value=["another"]):
            self.loaded(model=str(model))
        self.assertEqual(new(), 1)
        config = model / "config.json"
        config.write_text(config.read_text() + "\n")
        self.loaded(model=str(model))
        self.assertEqual(new(), 1)

    def test_a_damaged_file_is_exported_anew(self) -> None:
        model = shutil.copytree(self.folder(CLASSIFICATION), self.data / "model")
        self.loaded(model=str(model))
        for file in model.glob(f"{installation.HOME}/*/model.*"):
            file.write_bytes(file.read_bytes()[:100])
            self.assertTrue(self.computes(self.loaded(model=str(model))))

    def test_on_a_full_disk_it_is_computed_and_a_warning_says_what_to_do(self) -> None:
        model = shutil.copytree(
            self.folder(CLASSIFICATION), self.data / "model", ignore=shutil.ignore_patterns(installation.HOME)
        )
        (model / installation.HOME).mkdir()
        mount_small_disk(self, model / installation.HOME, size="64k")
        with self.assertLogs(installation.logger, "WARNING") as logs:
            engine = self.loaded(model=str(model))
        self.assertIn("Make room in", logs.output[0])
        self.assertTrue(self.computes(engine))
        self.assert_equal(self.predict(engine), self.torch_answers())
        self.assertEqual([path.suffix for path in (model / installation.HOME).iterdir()], [".lock"])
