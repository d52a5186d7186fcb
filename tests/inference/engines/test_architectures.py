"""Text architectures of transformers answer in a batch as they do alone: all that can be built small, with the
ALL_ARCHITECTURES=1 of `make newest`, and else an eighth of them."""

import copy
import functools
import gc
import os
import random
from collections.abc import Collection
from typing import Any
from unittest import TestCase
from unittest.mock import patch

import torch
import transformers

from inference.catalog.specs import ModelSpec
from inference.engines import loading
from inference.engines.artifacts import pipeline_loader, weights
from inference.engines.runtime.json_values import convert_to_json
from inference.engines.runtime.parity import are_alike
from inference.engines.runtime.row_groups import BatchingMode
from tests import architectures

# Of architectures whose answers padding changes: what a sweep that sees nothing would not find.
SEE_PADDING = {"convbert", "fnet", "nystromformer", "yoso"}
PARAMETERS: dict[str, dict[str, Any]] = {
    "text-classification": {"top_k": 2},
    "fill-mask": {"top_k": 3},
    "text-generation": {"max_new_tokens": 3, "do_sample": False},
}
PADDING_CHANGES = {"text-generation": {"bart", "rwkv"}}
PART = 1 if os.environ.get("ALL_ARCHITECTURES") == "1" else 8  # one of so many kinds, beside those that are named
LENGTHS = (5, 12, 40, 58, 200)  # words; the last is cut
PROMPTS = (1, 3, 30)


def texts(lengths: tuple[int, ...]) -> list[str]:
    chosen = random.Random(3)
    return [" ".join(f"w{chosen.randrange(60)}" for _ in range(length)) for length in lengths]


def engine(kind: str, task: str) -> Any:
    """Over a model that was never saved: the tests of loading have the rest."""
    model = architectures.build(kind, task)
    tokenizer = copy.deepcopy(architectures.tokenizer(ends=task != "text-generation"))
    made = functools.partial(transformers.pipeline, model=model, tokenizer=tokenizer, device="cpu")
    with (
        patch.object(weights, "fetch_folder"),
        patch.object(pipeline_loader, "pipeline", lambda task, **options: made(task)),
    ):
        return loading.load_engine(ModelSpec(name=kind, task=task, model="m"), "cpu")


class BatchTests(TestCase):
    def setUp(self) -> None:
        gc.freeze()  # hundreds of models are garbage soon, and what was imported before never is
        self.addCleanup(gc.unfreeze)
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)  # the models are smaller than the cost of sharing them
        verbosity = transformers.utils.logging.get_verbosity()
        self.addCleanup(transformers.utils.logging.set_verbosity, verbosity)
        transformers.utils.logging.set_verbosity_error()

    def sweep(self, task: str, inputs: list[str], *, without: Collection[str] = ()) -> dict[str, BatchingMode]:
        """How each kind runs its batches. Fails for those whose answers change there."""
        named = SEE_PADDING | PADDING_CHANGES.get(task, set())
        every = [kind for kind in architectures.kinds(task) if kind not in without]
        kinds = [kind for place, kind in enumerate(every) if place % PART == 0 or kind in named]
        tried = {kind: self.tried(kind, task, inputs) for kind in kinds}
        return {kind: found for kind, found in tried.items() if found is not None}

    def tried(self, kind: str, task: str, inputs: list[str]) -> BatchingMode | None:
        with self.subTest(f"{task} by {kind}"):
            made, parameters = engine(kind, task), PARAMETERS.get(task, {})
            alone = convert_to_json([made.predict([text], parameters)[0] for text in inputs])
            self.assertGreater(len({str(answer) for answer in alone}), 1, "its answers say nothing")
            if (found := made.shortcuts.batching_choice.mode) is not BatchingMode.ALONE:
                self.assertTrue(are_alike(convert_to_json(made.predict(inputs, parameters)), alone), made.note)
            return BatchingMode(found)
        return None

    def assert_sensitive(self, found: dict[str, BatchingMode]) -> None:
        others = [way for kind, way in found.items() if kind not in SEE_PADDING]
        self.assertGreater(sum(way is BatchingMode.PADDED for way in others), 0.9 * len(others))
        for kind in SEE_PADDING:
            self.assertIs(found[kind], BatchingMode.EQUAL, kind)

    def test_text_classification(self) -> None:
        self.assert_sensitive(self.sweep("text-classification", texts(LENGTHS)))

    def test_token_classification(self) -> None:
        """The states of the others are those that `test_fill_mask` looks at."""
        others = architectures.kinds("fill-mask")
        self.assertTrue(self.sweep("token-classification", texts(LENGTHS), without=others))

    def test_fill_mask(self) -> None:
        self.assert_sensitive(self.sweep("fill-mask", [f"<mask> {text}" for text in texts(LENGTHS)]))

    def test_text_generation(self) -> None:
        found = self.sweep("text-generation", texts(PROMPTS))
        for kind in PADDING_CHANGES["text-generation"]:
            self.assertIsNot(found[kind], BatchingMode.PADDED, kind)
