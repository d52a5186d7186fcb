"""Makes the model, and writes down what `generate` answers, one prompt at a time. Run as a program."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from benchmarks.generation import dataset
from benchmarks.generation.dataset import Example


def make() -> None:
    """The package has quantized weights: they are unfolded once."""
    file = dataset.weights_file()
    loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = LlamaForCausalLM(config).float()
    model.load_state_dict(loaded.state_dict())
    tokenizer.pad_token, tokenizer.padding_side = tokenizer.eos_token, "left"  # batches of some peers are padded
    tokenizer.save_pretrained(dataset.MODEL)
    model.save_pretrained(dataset.MODEL)


def answers() -> Iterator[Example]:
    model: Any = AutoModelForCausalLM.from_pretrained(dataset.MODEL, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(dataset.MODEL)
    for one in tqdm(dataset.make_examples(), unit="answer"):
        given = tokenizer(one.prompt, return_tensors="pt")
        tokens = model.generate(**given, max_new_tokens=one.limit, do_sample=False)[0, given["input_ids"].shape[1] :]
        yield replace(one, text=tokenizer.decode(tokens, skip_special_tokens=True), tokens=len(tokens))


def main() -> None:
    print("Preparing the workload generation: its model, and what generate answers", file=sys.stderr)
    if not (dataset.MODEL / "model.safetensors").exists():
        make()
    dataset.keep(list(answers()))


if __name__ == "__main__":
    main()
