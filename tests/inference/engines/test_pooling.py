"""The vector that a folder asks for is the vector that is given, and what is not known is refused."""

import json
import tempfile
from pathlib import Path
from typing import Any
from unittest import TestCase

import torch
from transformers import AutoModel, AutoTokenizer

from inference.catalog.specs import ModelSpec
from inference.engines import loading, pooling
from inference.errors import ModelUnavailable
from tests import tiny_models

TEXTS = ["the cat runs in paris", "a dog", "it was a good house and the red cat sleeps on it"]
STEPS = ("Transformer", "Pooling", "Normalize")


def vector(mode: str, states: torch.Tensor) -> torch.Tensor:
    """Of the states of one text, (tokens, hidden): written down once more, without a mask."""
    count = len(states)
    weights = torch.arange(1.0, count + 1).unsqueeze(1)
    return {
        "cls": states[0],
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
        return loading.ready(spec, "cpu")

    def expected(self, *modes: str, positions: int = 64) -> torch.Tensor:
        model, tokenizer = AutoModel.from_pretrained(self.folder), AutoTokenizer.from_pretrained(self.folder)
        rows = []
        for text in TEXTS:
            ids = tokenizer(text, return_tensors="pt", truncation=True, max_length=positions)
            with torch.inference_mode():
                states = model(**ids).last_hidden_state[0]
            found = torch.cat([vector(mode, states) for mode in modes])
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
        self.write("1_Pooling/config.json", {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True})
        self.assert_vectors("cls", "mean")

    def test_a_pooling_without_modules_counts_too(self) -> None:
        self.write("1_Pooling/config.json", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
        self.assert_vectors("cls")

    def test_texts_are_cut_at_the_length_that_the_folder_says(self) -> None:
        self.write("sentence_bert_config.json", {"max_seq_length": 5})
        self.assert_vectors("mean", positions=5)

    def test_texts_are_cut_at_the_model_s_positions_where_nothing_says_more(self) -> None:
        config = json.loads((self.folder / "tokenizer_config.json").read_text())
        self.write("tokenizer_config.json", {**config, "model_max_length": 1e30})
        self.write("sentence_bert_config.json", {"max_seq_length": 500})
        engine = self.engine()
        self.assertEqual(engine.max_tokens, 64)
        self.assertEqual(len(engine.predict(["cat " * 500], {})[0]), tiny_models.WIDTH)


class RefusedTests(FolderTestCase):
    def assert_refused(self, *words: str) -> None:
        with self.assertRaises(ModelUnavailable) as caught:
            self.engine()
        for word in words:
            self.assertIn(word, caught.exception.message)

    def test_a_step_that_is_not_known(self) -> None:
        self.write("1_Pooling/config.json", {"pooling_mode": "mean"})
        self.steps("Transformer", "Pooling", "Dense", "Normalize")
        self.assert_refused("Dense", "Transformer, Pooling and Normalize")

    def test_a_pooling_that_is_not_known_or_not_there(self) -> None:
        self.steps(*STEPS)
        for config in ({"pooling_mode": "attention"}, {"pooling_mode_attention": True}, {}, {"pooling_mode": 3}):
            with self.subTest(config):
                self.write("1_Pooling/config.json", config)
                self.assert_refused("pooling", "weightedmean")

    def test_a_folder_elsewhere(self) -> None:
        self.write("modules.json", [{"path": "", "type": "Transformer"}, {"path": "../x", "type": "Pooling"}])
        self.assert_refused("../x")
