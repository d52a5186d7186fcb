"""Every example of docs/openai.md in Python, as it stands there, against a small model."""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from django.conf import settings

from inference.models import Status
from tests import tiny_models
from tests.e2e.case import StackCase
from tests.ports import HOST
from tests.stack import Stack

PAGE = (Path(settings.BASE_DIR) / "docs" / "openai.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(MODELS,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


class ExampleTests(StackCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        model = tiny_models.build("text-generation", Path(folder) / "tiny")
        (table,) = tomllib.loads(MODELS).values()
        cls.stack = cls.enterClassContext(Stack(models=MODELS.replace(table["model"], str(model)), replicas=1))

    def test_the_examples_run(self) -> None:
        names: dict[str, Any] = {}
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            for code in EXAMPLES:
                here = code.replace("http://127.0.0.1:8000", f"http://{HOST}:{self.stack.port}").replace("inf_…", "any")
                exec(here, names)
        self.addCleanup(names["client"].close)
        self.assertEqual(self.stack.jobs.filter(status=Status.SUCCEEDED).count(), len(EXAMPLES))
        answer, *_ = self.stack.jobs.order_by("pk")
        self.assertIn(answer.output[0]["generated_text"], printed.getvalue())
