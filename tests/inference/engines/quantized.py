"""What a model answers with quantized weights, and placed by a map. Run as a program, with the model's folder."""

import json
import os
import sys
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
    for values in ENTRIES:
        entry = ModelSpec(name="m", task="text-classification", model=folder, **values)
        (answers[str(values)],) = loading.ready(entry, "cpu").predict(["good day"], {})
    sys.stdout.write(f"{json.dumps(answers)}\n")


if __name__ == "__main__":
    main(sys.argv[1])
