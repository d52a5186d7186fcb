"""A transformers whose private names are others: each module's source is changed as it is imported.

    python -m tests.renamed FOLDER NAME …

loads each model of FOLDER, one a task, with the names NAME … changed, and prints as JSON what it answers, what the bare
pipeline answers, and what was warned of.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import logging
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any


class Loader(importlib.machinery.SourceFileLoader):
    pattern: re.Pattern[str]

    def get_code(self, fullname: str) -> CodeType | None:
        source = Path(self.path).read_text(encoding="utf-8")
        if not self.pattern.search(source):
            return super().get_code(fullname)
        return self.source_to_code(self.pattern.sub(r"\g<0>_renamed", source).encode(), self.path)


class Finder(importlib.abc.MetaPathFinder):
    def __init__(self, names: Sequence[str]) -> None:
        Loader.pattern = re.compile(rf"\b({'|'.join(names)})\b")

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if fullname.partition(".")[0] != "transformers":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec and spec.origin and spec.origin.endswith(".py"):
            spec.loader = Loader(fullname, spec.origin)
        return spec


class Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def compute_answers(task: str, folder: Path, inputs: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    from transformers import Pipeline, pipeline

    from inference.catalog.specs import ModelSpec
    from inference.engines import loading
    from inference.engines.runtime.engine_calls import run_engine_with_isolation
    from inference.engines.runtime.json_values import convert_to_json

    warnings = Warnings()
    logging.getLogger("inference").addHandler(warnings)
    engine: Any = loading.load_engine(ModelSpec(name=task, task=task, model=str(folder)), "cpu")
    answers = run_engine_with_isolation(engine, inputs, parameters).outcomes
    logging.getLogger("inference").removeHandler(warnings)
    bare = pipeline(task, model=str(folder), device="cpu")
    read = [engine.feed.read_input_and_parameters(value, engine.pipe, parameters) for value in inputs]
    expected = [Pipeline.__call__(bare, value, **own) for value, own in read]
    return {
        "answers": [str(a) if isinstance(a, Exception) else a for a in answers],
        "expected": convert_to_json(expected),
        "warnings": warnings.said,
    }


def main() -> None:
    import django

    folder, *names = sys.argv[1:]
    if names:
        sys.meta_path.insert(0, Finder(names))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
    cases = json.loads((Path(folder) / "cases.json").read_text())
    json.dump({task: compute_answers(task, Path(folder) / task, *case) for task, case in cases.items()}, sys.stdout)


if __name__ == "__main__":
    main()
