"""The vector that a folder asks for is the vector that is given, and what is not known is refused."""

import json
import tempfile
from pathlib import Path
from typing import Any
from unittest import TestCase

import torch
from safetensors.torch import save_file
from transformers import AutoModel, AutoTokenizer

from inference.catalog.specs import ModelSpec
from inference.engines import loading
from inference.engines.sentences import pooling
from inference.errors import ModelUnavailable
from tests import tiny_models

TEXTS = ["the cat runs in paris", "a dog", "it was a good house and the red cat sleeps on it"]
STEPS = ("Transformer", "Pooling", "Normalize")


def vector(mode: str, states: torch.Tensor, skip: int = 0) -> torch.Tensor:
    """Of the states of one text, (tokens, hidden): written down once more, without a mask."""
    if mode == "cls":
        return states[0]
    weights = torch.arange(1.0, len(states) + 1).unsqueeze(1)[skip:]
    states = states[skip:]
    count = len(states)
    return {
        "max": states.max(0).values,
        "mean": states.mean(0),
        "mean_sqrt_len_tokens": states.sum(0) / count**0.5,
        "weightedmean": (states * weights).sum(0) / weights.sum(),
        "lasttoken": states[count - 1],
    }[mode]


class FolderTestCase(TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = tiny_models.build("feature-extraction", Path(temporary.name))

    def write(self, name: str, content: Any) -> None:
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_text(json.dumps(content))

    def steps(self, *kinds: str) -> None:
        places = ("", "1_Pooling", "2_Normalize", "3")
        self.write(
            "modules.json",
            [{"path": places[n], "type": f"sentence_transformers.models.{kind}"} for n, kind in enumerate(kinds)],
        )

    def engine(self, **more: Any) -> Any:
        spec = ModelSpec(name="m", engine="inference.engines.embeddings:SentenceEmbeddings", model=str(self.folder))
        return loading.load_engine(spec, "cpu")

    def expected(
        self, *modes: str, positions: int = 64, prompt: str = "", lower: bool = False, skip: int = 0
    ) -> torch.Tensor:
        """As `SentenceTransformer.encode` reads a text; the first `skip` tokens are not pooled."""
        model, tokenizer = AutoModel.from_pretrained(self.folder), AutoTokenizer.from_pretrained(self.folder)
        rows = []
        for text in TEXTS:
            whole = prompt + text
            whole = whole.lower() if lower else whole
            ids = tokenizer(whole, return_tensors="pt", truncation=True, max_length=positions)
            with torch.inference_mode():
                states = model(**ids).last_hidden_state[0]
            found = torch.cat([vector(mode, states, skip) for mode in modes])
            rows.append(found / found.norm())
        return torch.stack(rows)

    def assert_vectors(self, *modes: str, **more: Any) -> None:
        found = torch.tensor(self.engine().predict(TEXTS, {}))
        torch.testing.assert_close(found, self.expected(*modes, **more), rtol=1e-4, atol=1e-4)


class KindTests(FolderTestCase):
    def test_a_folder_that_says_nothing_means_the_mean(self) -> None:
        self.assert_vectors("mean")

    def test_each_kind_by_its_flag_and_by_its_name(self) -> None:
        self.steps(*STEPS)
        flags = {name: f"pooling_mode_{name}_tokens" for name in ("max", "mean", "weightedmean")}
        flags |= {"cls": "pooling_mode_cls_token", "lasttoken": "pooling_mode_lasttoken"}
        for mode in pooling.POOLS:
            flag = flags.get(mode, f"pooling_mode_{mode}")
            off = {other: False for other in flags.values() if other != flag}
            for config in ({flag: True, "include_prompt": True, **off}, {"pooling_mode": mode}):
                with self.subTest(config):
                    self.write("1_Pooling/config.json", config)
                    self.assert_vectors(mode)

    def test_several_kinds_follow_each_other(self) -> None:
        self.steps("Transformer", "Pooling")
        for mean in ({"pooling_mode_mean_tokens": True}, {}):  # which is asked for unless it is said not to be
            self.write("1_Pooling/config.json", {"pooling_mode_cls_token": True, **mean})
            self.assert_vectors("cls", "mean")
        self.write("1_Pooling/config.json", {"embedding_dimension": 32, "pooling_mode": ["mean", "cls"]})
        self.assert_vectors("mean", "cls")

    def test_a_pooling_without_modules_counts_too(self) -> None:
        self.write("1_Pooling/config.json", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
        self.assert_vectors("cls")

    def test_texts_are_cut_at_the_length_that_the_folder_says(self) -> None:
        self.write("sentence_bert_config.json", {"max_seq_length": 5})
        self.assert_vectors("mean", positions=5)

    def test_the_length_that_the_folder_says_stands_above_the_tokenizer_s_own(self) -> None:
        config = json.loads((self.folder / "tokenizer_config.json").read_text())
        self.write("tokenizer_config.json", {**config, "model_max_length": 5})
        self.write("sentence_bert_config.json", {"max_seq_length": 9, "do_lower_case": False})
        self.assert_vectors("mean", positions=9)

    def test_texts_are_cut_at_the_model_s_positions_where_nothing_says_more(self) -> None:
        config = json.loads((self.folder / "tokenizer_config.json").read_text())
        self.write("tokenizer_config.json", {**config, "model_max_length": 1e30})
        self.write("sentence_bert_config.json", {"max_seq_length": 500})
        engine = self.engine()
        self.assertEqual(engine.max_tokens, 64)
        self.assertEqual(len(engine.predict(["cat " * 500], {})[0]), tiny_models.WIDTH)


class TextTests(FolderTestCase):
    PROMPT = "In PARIS: "

    def prompts(self, name: Any) -> None:
        prompts = {"query": self.PROMPT, "document": ""}
        self.write("config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": name})

    def test_the_default_prompt_stands_before_each_text_and_the_note_says_so(self) -> None:
        self.prompts("query")
        self.assert_vectors("mean", prompt=self.PROMPT)
        self.assertIn("In PARIS", self.engine().note)
        for name in (None, "document"):
            self.prompts(name)
            self.assert_vectors("mean")
            self.assertEqual(self.engine().note, "")

    def test_a_prompt_counts_where_a_text_is_cut(self) -> None:
        self.prompts("query")
        self.write("sentence_bert_config.json", {"max_seq_length": 6})
        self.assert_vectors("mean", prompt=self.PROMPT, positions=6)

    def test_a_prompt_that_is_not_to_be_included_is_not_pooled(self) -> None:
        self.prompts("query")
        self.steps(*STEPS)
        skip = 4  # [CLS] in paris :
        self.assertEqual(len(AutoTokenizer.from_pretrained(self.folder)(self.PROMPT)["input_ids"]), skip + 1)
        for mode in pooling.POOLS.keys() - {"cls"}:
            with self.subTest(mode):
                self.write("1_Pooling/config.json", {"pooling_mode": mode, "include_prompt": False})
                self.assert_vectors(mode, prompt=self.PROMPT, skip=skip)
                self.write("1_Pooling/config.json", {"pooling_mode": mode, "include_prompt": True})
                self.assert_vectors(mode, prompt=self.PROMPT)

    def test_texts_are_made_lower_case_where_the_folder_says_so(self) -> None:
        tokenizer = json.loads((self.folder / "tokenizer.json").read_text())
        self.write("tokenizer.json", {**tokenizer, "normalizer": None})
        self.prompts("query")
        self.write("sentence_bert_config.json", {"do_lower_case": True})
        self.assert_vectors("mean", prompt=self.PROMPT, lower=True)
        self.write("sentence_bert_config.json", {"do_lower_case": False})
        self.assert_vectors("mean", prompt=self.PROMPT)

    def test_what_newer_releases_write_beside_it_changes_no_vector(self) -> None:
        text = {"method": "forward", "method_output_name": "last_hidden_state"}
        newer = {"transformer_task": "feature-extraction", "modality_config": {"text": text}, "unpad_inputs": False}
        self.write("sentence_bert_config.json", {**newer, "model_kwargs": {}, "processor_kwargs": {}})
        self.assert_vectors("mean")

    def test_files_of_older_releases_are_read_too(self) -> None:
        self.write("sentence_roberta_config.json", {"max_seq_length": 5})
        self.assert_vectors("mean", positions=5)


class RefusedTests(FolderTestCase):
    def assert_refused(self, *words: str) -> None:
        with self.assertRaises(ModelUnavailable) as caught:
            self.engine()
        for word in words:
            self.assertIn(word, caught.exception.message)

    def test_a_step_that_is_not_known(self) -> None:
        self.write("1_Pooling/config.json", {"pooling_mode": "mean"})
        for kinds in (("LSTM", "Normalize"), ("Normalize", "Dense")):
            with self.subTest(kinds):
                self.steps("Transformer", "Pooling", *kinds)
                self.assert_refused(*kinds, "Transformer, Pooling, any number of Dense, and Normalize")

    def test_a_first_step_that_is_no_transformer(self) -> None:
        (self.folder / "config.json").unlink()
        self.assert_refused("config.json", "save_pretrained")
        self.write("modules.json", [{"path": "0_BoW", "type": "sentence_transformers.models.BoW"}])
        self.assert_refused("modules.json begins with BoW (path '0_BoW')", "a Transformer in the folder itself")

    def test_a_pooling_that_is_not_known_or_not_there(self) -> None:
        self.steps(*STEPS)
        for config in ({"pooling_mode": "attention"}, {"pooling_mode_attention": True}, {}, {"pooling_mode": 3}):
            with self.subTest(config):
                self.write("1_Pooling/config.json", config)
                self.assert_refused("pooling", "weightedmean")

    def test_what_is_not_understood_is_named_by_file_and_field(self) -> None:
        model, transformer, pools = (
            "config_sentence_transformers.json",
            "sentence_bert_config.json",
            "1_Pooling/config.json",
        )
        cases: tuple[tuple[str, Any, str], ...] = (
            (model, {"prompts": {"a": "b"}, "default_prompt_name": "query"}, "default_prompt_name"),
            (model, {"prompts": {"query": 3}}, "prompts"),
            (model, {"model_type": "SparseEncoder"}, "model_type"),
            (model, {"truncate_dim": 64}, "truncate_dim"),
            (model, {"colour": "red"}, "colour"),
            (model, ["prompts"], "object"),
            (transformer, {"max_seq_length": "long"}, "max_seq_length"),
            (transformer, {"do_lower_case": "yes"}, "do_lower_case"),
            (transformer, {"tokenizer_args": {"add_special_tokens": False}}, "tokenizer_args"),
            (transformer, {"processor_kwargs": {"add_special_tokens": False}}, "processor_kwargs"),
            (transformer, {"mask_prompt": True}, "mask_prompt"),
            (pools, {"pooling_mode": "mean", "include_prompt": "no"}, "include_prompt"),
            (pools, {"pooling_mode": "mean", "temperature": 2}, "temperature"),
            ("adapter_config.json", {"peft_type": "LORA"}, "adapter"),
            ("modules.json", [{"type": "Transformer", "path": "0_X"}, {"type": "Pooling", "path": "1"}], "path"),
            ("modules.json", [{"type": "Transformer", "path": "", "kwargs": ["task"]}, {"type": "Pooling"}], "kwargs"),
            ("modules.json", {"type": "Transformer"}, "list"),
            (model, {"prompts": {"a": "b"}, "default_prompt_name": ["a"]}, "default_prompt_name"),
        )  # fmt: skip
        for file, content, field in cases:
            with self.subTest(file=file, content=content):
                self.write(file, content)
                self.assert_refused(file, field)
                (self.folder / file).unlink()

    def test_a_prompt_that_one_release_leaves_out_of_cls_and_another_does_not(self) -> None:
        self.steps(*STEPS)
        self.write("1_Pooling/config.json", {"pooling_mode": ["mean", "cls"], "include_prompt": False})
        self.engine()
        self.write("config_sentence_transformers.json", {"prompts": {"query": "find: "}})
        self.assert_refused("1_Pooling/config.json", "include_prompt = false beside the pooling cls")

    def test_a_dense_module_that_is_not_understood(self) -> None:
        places = ("", "1_Pooling", "2_Dense")
        kinds = ("Transformer", "Pooling", "Dense")
        self.write("modules.json", [{"path": place, "type": kind} for place, kind in zip(places, kinds, strict=True)])
        self.write("1_Pooling/config.json", {"pooling_mode": "mean"})
        good = {"in_features": tiny_models.WIDTH, "out_features": 4, "bias": True}
        for config, words in (
            ({}, "in_features"),
            ({"in_features": 10**30}, "whole numbers from 1 to"),
            ({"out_features": True}, "whole numbers from 1 to"),
            ({"use_residual": 1}, "use_residual = 1"),
            ({"bias": "yes"}, "bias = 'yes'"),
            ({"dropout": 0.5}, "dropout = 0.5"),
            ({"module_input_name": "token_embeddings"}, "module_input_name = 'token_embeddings'"),
            ({"activation_function": "os.system"}, "activation_function 'os.system' is not known"),
            ({"activation_function": "torch.nn.modules.activation.Tanh"}, "2_Dense/model.safetensors is missing"),
        ):
            with self.subTest(config):
                self.write("2_Dense/config.json", {**good, **config} if config else {})
                self.assert_refused(words)
        weights = {"linear.weight": torch.zeros(4, 3), "linear.bias": torch.zeros(4)}
        save_file(weights, self.folder / "2_Dense" / "model.safetensors")
        self.write("2_Dense/config.json", good)
        self.assert_refused("2_Dense/model.safetensors does not fit its config.json")

    def test_a_folder_elsewhere(self) -> None:
        self.write("modules.json", [{"path": "", "type": "Transformer"}, {"path": "..", "type": "Pooling"}])
        self.assert_refused("'..'")
        self.write("modules.json", [{"path": "", "type": "Transformer"}, {"path": "../x", "type": "Pooling"}])
        self.assert_refused("../x")
