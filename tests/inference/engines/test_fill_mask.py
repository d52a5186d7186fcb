"""A pretrained fill-mask model: RXNMapper's ALBERT, which reads chemical reactions."""

import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any
from unittest import TestCase

from inference.catalog.specs import ModelSpec
from inference.engines import loading
from inference.engines.base import Engine
from inference.engines.runtime.engine_calls import run_engine_with_isolation

INSIDE = "models/transformers/albert_heads_8_uspto_all_1310k"
SMILES = r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"
ESTER = "CC(=O)O.OCC>>CC(=O)[MASK]CC"


def save(folder: Path) -> None:
    """The package holds a pickle and a vocabulary: as safetensors, with a tokenizer of one token a symbol."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import AlbertForMaskedLM, PreTrainedTokenizerFast

    found = importlib.util.find_spec("rxnmapper")
    assert found is not None
    assert found.submodule_search_locations
    source = Path(found.submodule_search_locations[0]) / INSIDE
    vocabulary = {line: index for index, line in enumerate((source / "vocab.txt").read_text().splitlines())}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(SMILES), "isolated")
    ends = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    AlbertForMaskedLM.from_pretrained(source).save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        mask_token="[MASK]",
        model_max_length=512,
    ).save_pretrained(folder)


class ReactionTests(TestCase):
    engine: Engine

    @classmethod
    def setUpClass(cls) -> None:
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        save(Path(temporary.name))
        cls.engine = loading.load_engine(ModelSpec(name="m", task="fill-mask", model=temporary.name), "cpu")

    def test_the_missing_atom_of_an_ester_is_found_alone_and_in_a_batch(self) -> None:
        inputs = [ESTER, "C[MASK]", "CC(=O)O.OCC>>CC(=O)OCC.CCO[MASK]"]
        alone: Any = run_engine_with_isolation(self.engine, [ESTER], {}).outcomes[0]
        together: Any = run_engine_with_isolation(self.engine, inputs, {}).outcomes[0]
        self.assertEqual(alone[0]["token_str"], "O")
        self.assertAlmostEqual(alone[0]["score"], 0.86, places=2)
        for first, second in zip(alone, together, strict=True):
            self.assertEqual(first["token"], second["token"])
            self.assertAlmostEqual(first["score"], second["score"], places=4)
        json.dumps(together)
