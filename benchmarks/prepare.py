"""Makes the models of workloads and writes down what the bare pipeline answers. Run as a program."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
)

from benchmarks.pipeline import Pipeline, Setting
from benchmarks.workloads import WORKLOADS, Workload, essence, weights_folder

SEED = 20
LABELS = 5
WIDE = 0.06  # standard deviation of random weights that give answers which differ from text to text


def make_tiny() -> Any:
    size = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 512}
    return spread(BertForSequenceClassification(BertConfig(num_labels=LABELS, initializer_range=WIDE, **size)))


def make_minilm() -> Any:
    return spread(BertForSequenceClassification.from_pretrained(weights_folder(), num_labels=LABELS))


def make_bert_base() -> Any:
    return BertForMaskedLM(BertConfig(initializer_range=WIDE))


MAKERS = {"tiny": make_tiny, "minilm": make_minilm, "bert-base": make_bert_base}


def spread(model: Any) -> Any:
    """A head whose scores tell texts apart: a mixed-up answer is seen."""
    torch.nn.init.normal_(model.classifier.weight, std=1.0)
    return model


def make(workload: Workload) -> None:
    torch.manual_seed(SEED)
    folder = workload.model_folder
    AutoTokenizer.from_pretrained(weights_folder()).save_pretrained(folder)
    MAKERS[workload.model]().save_pretrained(folder)


def write_answers(workload: Workload) -> None:
    setting = Setting(
        task=workload.task,
        folder=str(workload.model_folder),
        workers=1,
        threads=2,
        max_batch_size=1,
        port=0,
        broker_port=0,
    )
    pipeline = Pipeline(setting)
    answers = [essence(pipeline([text])) for text in workload.texts()]
    partial: Path = workload.answers_file.with_suffix(".partial")
    partial.write_text(json.dumps(answers))
    partial.rename(workload.answers_file)


def main() -> None:
    for name in sys.argv[1:]:
        workload = WORKLOADS[name]
        print(f"Preparing the workload {name}: its model, and the bare pipeline's answers", file=sys.stderr)
        if not (workload.model_folder / "model.safetensors").exists():
            make(workload)
        write_answers(workload)


if __name__ == "__main__":
    main()
