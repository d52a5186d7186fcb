"""What a model answers with quantized weights, and placed by a map. Run as a program, with the model's folder."""

import json
import os
import sys

import django

OPTIONS = (
    {"device_map": {"": "cpu"}},
    {"quantization": "torchao-int8"},
    {"quantization": "bitsandbytes-8bit"},
)


def main(folder: str) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
    from inference.catalog.specs import ModelSpec  # needs Django
    from inference.engines import loading

    answers = {}
    for options in OPTIONS:
        entry = ModelSpec(name="m", task="text-classification", model=folder, dtype="float32", options=options)
        (answers[str(options)],) = loading.ready(entry, "cpu").predict(["good day"], {})
    sys.stdout.write(f"{json.dumps(answers)}\n")


if __name__ == "__main__":
    main(sys.argv[1])
