"""What a model answers with quantized weights, and placed by a map. Run as a program, with the model's folder."""

import json
import os
import sys
import tempfile
from typing import Any

import django

ENTRIES: tuple[dict[str, Any], ...] = (
    {"dtype": "float32", "options": {"device_map": {"": "cpu"}}},
    {"dtype": "float32", "options": {"quantization": "torchao-int8"}},
    {"dtype": "float32", "options": {"quantization": "bitsandbytes-8bit"}},
    {"precision": "bfloat16", "options": {"quantization": "torchao-int8"}},
)


def main(folder: str) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
    from inference.catalog.specs import ModelSpec  # needs Django
    from inference.engines import loading

    answers = {}
    with tempfile.TemporaryDirectory() as packed:
        compress(folder, packed)
        for values in (*ENTRIES, {"model": packed, "dtype": "float32"}):
            entry = ModelSpec(**{"name": "m", "task": "text-classification", "model": folder, **values})
            (answers[str(values)],) = loading.load_engine(entry, "cpu").predict(["good day"], {})
    sys.stdout.write(f"{json.dumps(answers)}\n")


def compress(folder: str, packed: str) -> None:
    """Save the model of one folder in the other, its layers in 8 bits."""
    from compressed_tensors import compressors, quantization  # type: ignore[import-not-found]
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder)
    weights = quantization.QuantizationArgs(num_bits=8, strategy="channel")
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=weights)
    config = quantization.QuantizationConfig(
        config_groups={"all": scheme}, ignore=["classifier"], format="pack-quantized", quantization_status="frozen"
    )
    quantization.apply_quantization_config(model, config)
    for layer in model.modules():
        if hasattr(layer, "weight_scale"):
            layer.weight_scale.data = layer.weight.detach().abs().amax(1, keepdim=True) / 127
    compressor = compressors.ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(packed)
    compressor.update_config(packed)
    AutoTokenizer.from_pretrained(folder).save_pretrained(packed)


if __name__ == "__main__":
    main(sys.argv[1])
