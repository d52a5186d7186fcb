"""With a transformers whose private names are renamed, every model still serves, with a warning."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import TestCase

from django.conf import settings

from inference.engines.runtime.parity import are_alike
from tests import tiny_models
from tests.conditions import PATIENCE_S

TEXTS = ["the cat runs in paris", "a dog"]
CASES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "text-classification": (TEXTS, {"top_k": 2}),
    "feature-extraction": (TEXTS, {}),
    "fill-mask": ([f"{text} [MASK]" for text in TEXTS], {}),
    "token-classification": (TEXTS, {"aggregation_strategy": "simple"}),
    "zero-shot-classification": (TEXTS, {"candidate_labels": ["red", "a cat"]}),
    "text-generation": ([*TEXTS, [{"role": "user", "content": "hello"}]], {"max_new_tokens": 4, "do_sample": False}),
    "image-classification": ([tiny_models.png()], {}),
    "audio-classification": ([tiny_models.wav()], {}),
    "automatic-speech-recognition": ([tiny_models.wav()], {}),
}


def private_names(*files: str) -> set[str]:
    """What is read off others there."""
    texts = ((settings.BASE_DIR / "inference/engines" / file).read_text() for file in files)
    return {name for text in texts for name in re.findall(r"(?<!self)\.(_[a-z]\w*)", text)}


class RenamedTests(TestCase):
    def served(self, names: set[str], *tasks: str) -> dict[str, str]:
        """By task, what was warned of. Every answer is that of the bare pipeline."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "cases.json").write_text(json.dumps({task: CASES[task] for task in tasks}))
            for task in tasks:
                tiny_models.build(task, Path(folder, task))
            command = [sys.executable, "-m", "tests.renamed", folder, *sorted(names)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # the models are smaller than the cost of sharing them
            run = subprocess.run(
                command,
                capture_output=True,
                text=True,
                cwd=settings.BASE_DIR,
                env=environment,
                check=False,
                timeout=PATIENCE_S,
            )
        self.assertEqual(run.returncode, 0, run.stderr)
        found = json.loads(run.stdout)
        for task, report in found.items():
            self.assertTrue(are_alike(report["answers"], report["expected"]), f"{task}: {report}")
        return {task: "; ".join(report["warnings"]) for task, report in found.items()}

    def test_those_of_pipelines_leave_the_pipeline_as_a_whole(self) -> None:
        names = private_names("inputs/pipeline_calls.py")
        self.assertIn("_sanitize_parameters", names)
        for task, warned in self.served(names, *CASES).items():
            self.assertIn("runs without the shortcut 'step by step'", warned, task)
