"""Vectors and scores are those of the library sentence-transformers, for each kind of folder that it saves."""

import itertools
import json
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import TestCase

import torch
from transformers import MT5Config, MT5EncoderModel, T5Config, T5EncoderModel, UMT5Config, UMT5EncoderModel

from inference.catalog.specs import ModelSpec
from inference.engines import loading
from inference.engines.runtime.engine_calls import run_engine_with_isolation
from inference.errors import ContextLengthExceeded, InvalidInput, ModelUnavailable
from tests import sentence_transformers, tiny_models

EMBEDDINGS = "inference.engines.embeddings:SentenceEmbeddings"
TEXTS = [
    "the cat runs in paris", " A dog ", "", "France",
    "it was a good house and the red cat sleeps on it " * 3, "the red house and the bad dog " * 30,
]  # fmt: skip
LEAST = 0.99999  # of a cosine
TENSOR = {"convert_to_tensor": True, "show_progress_bar": False}
PROMPTS = {"query": "in paris: ", "passage": "the dog and ", "classification": "good or bad: "}


class FolderTests(TestCase):
    """Each folder is saved by the library, and read by it and by the engine."""

    library: Any
    folder: Path
    names: Iterator[str]

    @classmethod
    def setUpClass(cls) -> None:
        cls.library = sentence_transformers.library()
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = Path(temporary.name)
        tiny_models.build("feature-extraction", cls.folder / "base")
        cls.names = (f"saved{number}" for number in itertools.count())

    def modules(self, *more: Any, pooling: Any = "mean", **options: Any) -> list[Any]:
        modules = self.library.base.modules
        first = modules.Transformer(str(self.folder / "base"), **options)
        width = tiny_models.WIDTH
        return [first, self.library.sentence_transformer.modules.Pooling(width, pooling_mode=pooling), *more]

    def saved(self, modules: list[Any], **options: Any) -> tuple[Any, Any]:
        """Return the library's model of these modules, and the engine over the folder that it was saved in."""
        place = self.folder / next(self.names)
        with torch.random.fork_rng():
            self.library.SentenceTransformer(modules=modules, device="cpu", **options).save(str(place))
        return self.loaded(place)

    def loaded(self, place: Path) -> tuple[Any, Any]:
        model = self.library.SentenceTransformer(str(place), device="cpu", local_files_only=True)
        return model, loading.load_engine(ModelSpec(name="m", engine=EMBEDDINGS, model=str(place)), "cpu")

    def assert_equal(self, engine: Any, expected: Any, **parameters: Any) -> None:
        """Compare vectors that were computed in one batch, and each alone."""
        alone = [run_engine_with_isolation(engine, [text], parameters).outcomes[0] for text in TEXTS]
        for found in (run_engine_with_isolation(engine, TEXTS, parameters).outcomes, alone):
            vectors = torch.tensor(found)
            cosines = torch.nn.functional.cosine_similarity(vectors, expected)
            self.assertGreater(float(cosines.min()), LEAST)
            torch.testing.assert_close(vectors.norm(dim=1), expected.norm(dim=1), rtol=1e-4, atol=1e-5)

    def test_each_kind_of_pooling(self) -> None:
        kinds: list[Any] = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
        kinds += [("cls", "mean"), ("mean", "max", "cls"), ("mean", "mean")]
        for pooling in kinds:
            with self.subTest(pooling):
                model, engine = self.saved(self.modules(pooling=pooling))
                self.assert_equal(engine, model.encode(TEXTS, **TENSOR), normalize=False)
                normal = model.encode(TEXTS, normalize_embeddings=True, **TENSOR)
                self.assert_equal(engine, normal)

    def test_normalize_dense_and_residual_dense(self) -> None:
        modules, width = self.library.base.modules, tiny_models.WIDTH
        wide = modules.Dense(width, 2 * width, activation_function=torch.nn.Identity(), bias=False)
        narrow = modules.Dense(2 * width, 8, use_residual=True)
        same = modules.Dense(width, width, activation_function=torch.nn.GELU(), use_residual=True)
        for more in ([modules.Dense(width, 8), modules.Normalize()], [wide, narrow], [same], [modules.Normalize()]):
            with self.subTest([type(each).__name__ for each in more]):
                model, engine = self.saved(self.modules(*more))
                is_normal = isinstance(more[-1], modules.Normalize)
                expected = model.encode(TEXTS, **TENSOR)
                self.assert_equal(engine, expected, normalize=is_normal)

    def test_prompts_by_name_by_type_of_input_and_by_default(self) -> None:
        cases: list[tuple[bool, str | None, str]] = [*itertools.product((True, False), (None, "query"), ("mean",))]
        cases += [(False, "query", pooling) for pooling in ("max", "lasttoken", "weightedmean")]
        for includes, default, pooling in cases:
            with self.subTest(includes=includes, default=default, pooling=pooling):
                modules = self.modules(pooling=pooling)
                modules[1].include_prompt = includes
                model, engine = self.saved(modules, prompts=PROMPTS, default_prompt_name=default)
                options = {**TENSOR, "normalize_embeddings": True}
                self.assert_equal(engine, model.encode(TEXTS, **options))
                self.assert_equal(engine, model.encode_query(TEXTS, **options), input_type="query")
                self.assert_equal(engine, model.encode_document(TEXTS, **options), input_type="document")
                for name in PROMPTS:
                    self.assert_equal(engine, model.encode(TEXTS, prompt_name=name, **options), prompt_name=name)

    def test_types_of_input_in_a_folder_without_their_prompts(self) -> None:
        model, engine = self.saved(self.modules(), prompts={"other": "the cat: "}, default_prompt_name="other")
        options = {**TENSOR, "normalize_embeddings": True}
        self.assert_equal(engine, model.encode_query(TEXTS, **options), input_type="query")
        self.assert_equal(engine, model.encode_document(TEXTS, **options), input_type="document")

    def test_blanks_around_texts_that_become_tokens(self) -> None:
        tiny_models.build("gpt2-features", self.folder / "blanks")
        modules = self.library.base.modules
        pooling = self.library.sentence_transformer.modules.Pooling(tiny_models.WIDTH, include_prompt=False)
        tokenizer_kwargs = {"pad_token": "<|endoftext|>", "chat_template": None}
        first = modules.Transformer(str(self.folder / "blanks"), processor_kwargs=tokenizer_kwargs)
        model, engine = self.saved([first, pooling], prompts={"query": " in paris: "})
        place = Path(engine.spec.model)
        texts = [" A dog \n", "\tthe cat"]
        for is_old in (False, True):
            if is_old:  # as releases before 5.4 have saved it
                file = place / "sentence_bert_config.json"
                file.write_text(json.dumps({"max_seq_length": 64, "do_lower_case": False}))
                model, engine = self.loaded(place)
            for parameters in ({}, {"prompt_name": "query"}):
                with self.subTest(is_old=is_old, parameters=parameters):
                    expected = model.encode(texts, normalize_embeddings=True, **parameters, **TENSOR)
                    found = torch.tensor(run_engine_with_isolation(engine, texts, parameters).outcomes)
                    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

    def test_encoders_that_are_saved_without_their_decoder(self) -> None:
        tokenizer = tiny_models.byte_tokenizer()
        tokenizer.pad_token, tokenizer.model_input_names = tokenizer.eos_token, ["input_ids", "attention_mask"]
        size = {"d_model": tiny_models.WIDTH, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
        for config, kind in ((T5Config, T5EncoderModel), (MT5Config, MT5EncoderModel), (UMT5Config, UMT5EncoderModel)):
            with self.subTest(kind.__name__):
                base = self.folder / kind.__name__
                for part in (kind(config(vocab_size=len(tokenizer), **size)), tokenizer):
                    part.save_pretrained(base)
                modules = self.library.base.modules
                pooling = self.library.sentence_transformer.modules.Pooling(tiny_models.WIDTH)
                model, engine = self.saved([modules.Transformer(str(base)), pooling])
                texts = [text for text in TEXTS if text]
                found = torch.tensor(run_engine_with_isolation(engine, texts, {"normalize": False}).outcomes)
                torch.testing.assert_close(found, model.encode(texts, **TENSOR), rtol=1e-4, atol=1e-5)

    def test_texts_in_lower_case_and_cut(self) -> None:
        model, engine = self.saved(self.modules(max_seq_length=7, do_lower_case=True))
        self.assertEqual(engine.max_tokens, 7)
        self.assert_equal(engine, model.encode(TEXTS, normalize_embeddings=True, **TENSOR))


class RankingTests(TestCase):
    def test_texts_are_cut_and_queries_are_not(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            place = str(tiny_models.build("text-ranking", Path(folder)))
            engine = loading.load_engine(ModelSpec(name="m", task="text-ranking", model=place), "cpu")
        most = tiny_models.POSITIONS - 4  # three special tokens, and one of a text
        query = " ".join(["dog"] * (most - 1))
        first, same, other, bad, worse, blank = run_engine_with_isolation(
            engine,
            [
                {"text": query, "text_pair": "cat red"},
                {"text": query, "text_pair": "cat red paris in france"},
                {"text": query, "text_pair": "house red"},
                {"text": f"{query} dog dog", "text_pair": "cat"},
                {"text": "dog " * 100_000, "text_pair": ""},
                {"text": " " * 80_000, "text_pair": "cat"},
            ],
            {},
        ).outcomes
        self.assertAlmostEqual(first["score"], same["score"], places=6)
        self.assertNotAlmostEqual(first["score"], other["score"], places=3)
        for error in (bad, worse):
            self.assertIsInstance(error, ContextLengthExceeded)
            self.assertIn(f"and {most} leave room for a text", str(error))
        self.assertIn("tokens or more", str(worse))
        self.assertIsInstance(blank, ContextLengthExceeded)
        self.assertTrue(str(blank).startswith("The query cannot be read: "))
        long, short = {"text": "dog", "text_pair": "cat " * (most + 1)}, {"text": "dog", "text_pair": "cat"}
        refused, answered = run_engine_with_isolation(engine, [long, short], {"truncate": False}).outcomes
        self.assertIsInstance(refused, ContextLengthExceeded)
        self.assertEqual(answered, run_engine_with_isolation(engine, [short], {}).outcomes[0])
        marks = f"{'.' * 30} {'!' * 31}"  # a token each, in fewer characters than words have
        self.assertIsInstance(
            run_engine_with_isolation(engine, [{"text": marks, "text_pair": "cat"}], {}).outcomes[0],
            ContextLengthExceeded,
        )

    def test_details_say_how_many_tokens_were_read(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            place = str(tiny_models.build("text-ranking", Path(folder)))
            engine: Any = loading.load_engine(ModelSpec(name="m", task="text-ranking", model=place), "cpu")
        pairs = [{"text": "the dog", "text_pair": text} for text in ("cat", "the red cat", "cat " * 100)]
        plain, detailed_answers = (
            run_engine_with_isolation(engine, pairs, {"function_to_apply": "none", **details}).outcomes
            for details in ({}, {"details": True})
        )
        self.assertEqual([answer.pop("tokens") for answer in detailed_answers], [6, 8, tiny_models.POSITIONS])
        self.assertEqual(detailed_answers, plain)
        engine.steps = None  # The library is then called as a whole, and nothing is counted.
        [whole] = run_engine_with_isolation(engine, pairs[:1], {"function_to_apply": "none", "details": True}).outcomes
        self.assertEqual(whole.keys(), {"label", "score"})

    def test_no_more_tokens_of_a_text_are_read_than_are_asked_for(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            place = str(tiny_models.build("text-ranking", Path(folder)))
            engine: Any = loading.load_engine(ModelSpec(name="m", task="text-ranking", model=place), "cpu")
        first, whole = {"text": "dog", "text_pair": "cat red"}, {"text": "dog", "text_pair": f"cat red {'house ' * 90}"}
        for side, cut in (("right", whole), ("left", {**whole, "text_pair": f"{'house ' * 90} cat red"})):
            engine.pipe.tokenizer.truncation_side = side
            [expected] = run_engine_with_isolation(engine, [first], {"details": True}).outcomes
            for most, documents in ((2, [cut, first]), (10**30, [first])):
                parameters = {"details": True, "max_document_tokens": most, "truncate": False}
                outcomes = run_engine_with_isolation(engine, documents, parameters).outcomes
                self.assertEqual(len(outcomes), len(documents))
                for outcome in outcomes:  # a batch may be rounded otherwise than one alone
                    self.assertAlmostEqual(outcome["score"], expected["score"], places=6)
                    self.assertEqual({**outcome, "score": expected["score"]}, expected)
        bad = {"text": "dog", "text_pair": 3}
        [refused] = run_engine_with_isolation(engine, [bad], {"max_document_tokens": 1}).outcomes
        self.assertIsInstance(refused, InvalidInput)

    def test_a_folder_that_puts_a_prompt_before_queries_is_refused(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            place = str(tiny_models.build("text-ranking", Path(folder, "plain")))
            for default, is_served in ((None, True), ("q", False)):
                prompts = {"prompts": {"q": "the cat and "}, "default_prompt_name": default}
                model = sentence_transformers.library().CrossEncoder(
                    place, device="cpu", local_files_only=True, **prompts
                )
                model.save_pretrained(saved := str(Path(folder, f"saved {default}")))
                spec = ModelSpec(name="m", task="text-ranking", model=saved)
                with nullcontext() if is_served else self.assertRaisesRegex(ModelUnavailable, "before each query"):
                    loading.load_engine(spec, "cpu")

    def test_scores_of_pairs_are_those_of_a_cross_encoder(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            place = str(tiny_models.build("text-ranking", Path(folder)))
            model = sentence_transformers.library().CrossEncoder(place, device="cpu", local_files_only=True)
            engine = loading.load_engine(ModelSpec(name="m", task="text-ranking", model=place), "cpu")
        pairs = [("the dog", text) for text in TEXTS]
        inputs = [{"text": query, "text_pair": text} for query, text in pairs]
        for function, activation in (("none", torch.nn.Identity()), ("sigmoid", torch.nn.Sigmoid())):
            expected = model.predict(pairs, activation_fn=activation, **TENSOR)
            alone = [
                run_engine_with_isolation(engine, [pair], {"function_to_apply": function}).outcomes[0]
                for pair in inputs
            ]
            for found in (run_engine_with_isolation(engine, inputs, {"function_to_apply": function}).outcomes, alone):
                scores = torch.tensor([answer["score"] for answer in found])
                torch.testing.assert_close(scores, expected.reshape(-1), rtol=1e-4, atol=1e-5)
