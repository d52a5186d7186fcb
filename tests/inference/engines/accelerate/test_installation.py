"""A shortcut that fails, when it is installed or later, leaves the plain pipeline and its answers."""

import contextlib
import tempfile
from pathlib import Path
from typing import Any
from unittest import TestCase
from unittest.mock import Mock, patch

from inference.catalog.specs import ModelSpec
from inference.engines import loading
from inference.engines.accelerate import (
    batch_answers,
    fast_tokenizer,
    installation,
    prepacked_weights,
    unpadded_encoder,
)
from inference.engines.accelerate.installation import Shortcuts
from inference.engines.runtime import parity
from inference.engines.runtime.row_groups import BatchingMode
from inference.errors import InvalidInput
from tests import tiny_models
from tests.inference.engines.test_transformers import EqualTestCase

TEXTS = ["the cat runs in paris", "a dog", "it was a good house and the red cat sleeps on it"]


def fail(*arguments: Any, **options: Any) -> Any:
    raise AttributeError("'BertModel' object has no attribute 'encoder'")


class Fake:
    def __init__(self, fails: str = "") -> None:
        self.is_on, self.fails = False, fails

    def turn_on(self) -> None:
        self.is_on = True
        if self.fails == "on":
            fail()

    def turn_off(self) -> None:
        self.is_on = False


class ShortcutsTests(TestCase):
    def setUp(self) -> None:
        self.shortcuts = Shortcuts("bert", parity.BatchingChoice(mode=BatchingMode.PADDED))

    def add(self, shortcut: Fake) -> Any:
        return self.shortcuts.add_if_equal("fake", lambda: shortcut, lambda: True)

    def test_one_that_raises_while_it_is_installed_is_off(self) -> None:
        shortcut = Fake(fails="on")
        with self.assertLogs(installation.logger, "WARNING"):
            self.assertIsNone(self.add(shortcut))
            self.assertIsNone(self.shortcuts.add_if_equal("fake", fail, lambda: True))
            self.assertIsNone(self.shortcuts.add_if_equal("fake", lambda: shortcut, fail))
            self.assertIsNone(self.shortcuts.add_if_equal("fake", lambda: shortcut, lambda: False))
        self.assertFalse(shortcut.is_on)

    def test_one_that_raises_later_is_off_from_then_on(self) -> None:
        shortcut = self.add(Fake())
        with self.assertLogs(installation.logger, "WARNING"):
            self.assertEqual(self.shortcuts.guard_call(lambda: fail() if shortcut.is_on else [1]), [1])
        self.assertFalse(shortcut.is_on)

    def test_a_wrong_input_turns_nothing_off(self) -> None:
        shortcut = self.add(Fake())
        with self.assertRaises(AttributeError):
            self.shortcuts.guard_call(fail)
        wrong = InvalidInput("no text")
        self.assertEqual(self.shortcuts.guard_call(lambda: fail() if shortcut.is_on else [wrong]), [wrong])
        self.assertTrue(shortcut.is_on)

    def test_what_the_device_failed_at_is_not_tried_again(self) -> None:
        self.add(Fake())
        call = Mock(side_effect=MemoryError)
        with self.assertRaises(MemoryError):
            self.shortcuts.guard_call(call)
        call.assert_called_once_with()


class EngineTests(EqualTestCase):
    """With a transformers whose insides have other names, as far as the shortcuts see."""

    def loaded(self, task: str = "text-classification") -> Any:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        model = str(tiny_models.build(task, Path(folder.name)))
        return loading.load_engine(ModelSpec(name="m", task=task, model=model), "cpu")

    def test_what_fails_at_load_leaves_the_plain_pipeline(self) -> None:
        expected = self.loaded().predict(TEXTS, {})
        gone: list[contextlib.AbstractContextManager[Any]] = [
            patch.object(
                installation, "_make_packed_weights", side_effect=AttributeError("no attribute '_linear_pointwise'")
            ),
            patch.object(
                installation, "_make_unpadded_encoder", side_effect=ImportError("cannot import name 'BaseModelOutput'")
            ),
            patch.object(
                installation,
                "make_batch_answers_shortcut",
                side_effect=ImportError("cannot import name 'TokenizersBackend'"),
            ),
            patch.dict(unpadded_encoder.KINDS, {"bert": fail}),
            patch.object(unpadded_encoder.UnpaddedForward, "__call__", fail),
            patch.object(fast_tokenizer, "make_encoder", fail),
            patch.dict(batch_answers.READS, {"text-classification": fail}),
        ]
        for number, change in enumerate(gone):
            with self.subTest(number), change, self.assertLogs("inference.engines", "WARNING") as logs:
                self.assert_equal(self.loaded().predict(TEXTS, {}), expected)
            self.assertEqual(len(logs.output), 1)

    def test_packed_weights_answer_the_same_beside_the_other_shortcuts(self) -> None:
        for task in ("text-classification", "fill-mask", "feature-extraction"):
            texts = [f"{text} [MASK]" for text in TEXTS] if task == "fill-mask" else TEXTS
            plain = self.loaded(task)
            expected = [plain.predict([text], {})[0] for text in texts]
            with (
                self.subTest(task),
                patch.object(prepacked_weights, "LEAST", 1),
                patch.object(prepacked_weights, "has_avx2_alone", return_value=False),
            ):
                engine = self.loaded(task)
                self.assert_equal(engine.predict(texts, {}), expected)
                self.assert_equal(engine.predict(texts[:1], {}), expected[:1])
                self.assertLess(*(sum(part.numel() for part in of.pipe.model.parameters()) for of in (engine, plain)))

    def test_what_fails_in_a_later_call_does_so_once(self) -> None:
        broken = {
            "layers": patch.object(unpadded_encoder.UnpaddedForward, "__call__", fail),
            "texts": patch.object(batch_answers.BatchAnswers, "answer_texts", fail),
        }
        for name, change in broken.items():
            engine = self.loaded()
            expected = engine.predict(TEXTS, {})
            with self.subTest(name), change, self.assertLogs(installation.logger, "WARNING") as logs:
                self.assert_equal(engine.predict(TEXTS, {}), expected)
                self.assert_equal(engine.predict(TEXTS, {}), expected)
            self.assertEqual(len(logs.output), 1)
            self.assertTrue(engine.padded)
