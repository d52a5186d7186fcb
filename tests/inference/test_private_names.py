"""The private names of libraries that are touched, each where it is allowed: an upgrade that renames one fails here."""

import importlib.util
import re
from pathlib import Path
from unittest import TestCase

from django.conf import settings

# By file, then by module of the library, the names that must be in that module's source.
TOUCHED = {
    "inference/broker/kombu_redis/connections.py": {"redis.connection": "_sock"},
    "inference/engines/inputs/steps.py": {"transformers.pipelines.base": "_sanitize_parameters"},
    "inference/engines/accelerate/prepacked_weights.py": {
        "torch._inductor.fx_passes.mkldnn_fusion": "_reorder_linear_weight _linear_pointwise",
    },
}
# By file, then by module of the library, the methods that its documentation has subclasses define.
EXTENDED = {
    "inference/broker/kombu_redis/channel.py": {
        "kombu.transport.virtual.base": "_put _size _purge _delete _new_queue _has_queue _queue_bind",
        "kombu.transport.virtual.exchange": "_queue_bind _put_fanout",
    },
}
# What the documentation of Django and Python names.
DOCUMENTED = {"_meta", "_state", "_default_manager", "_exit", "_fields", "_replace", "_asdict"}


def touched_in(source: str) -> set[str]:
    """What is read off others: an object's own names are not told from those that it inherits."""
    return set(re.findall(r"(?<!\bself)(?<!\bcls)(?<!super\(\))\.(_[a-zA-Z]\w*)", source)) - DOCUMENTED


def source_of(module: str) -> str:
    """Without running it: some warn when they are imported."""
    found = importlib.util.find_spec(module)
    assert found is not None, module
    assert found.origin is not None, module
    return Path(found.origin).read_text(encoding="utf-8")


class PrivateNameTests(TestCase):
    def test_each_is_in_the_version_that_is_installed(self) -> None:
        for file, modules in [*TOUCHED.items(), *EXTENDED.items()]:
            ours = (settings.BASE_DIR / file).read_text()
            for module, names in modules.items():
                theirs = source_of(module)
                for name in names.split():
                    self.assertRegex(ours, rf"\b{name}\b", f"{file} touches {name} no more: take it off the table.")
                    self.assertRegex(theirs, rf"\b{name}\b", f"{file} uses {name} of {module}, which is gone.")

    def test_no_other_file_touches_any(self) -> None:
        for package in ("inference", "api", "project", "tools", "batch_inference_client"):
            for file in (settings.BASE_DIR / package).rglob("*.py"):
                place = str(file.relative_to(settings.BASE_DIR))
                allowed = {name for item in TOUCHED.get(place, {}).items() for name in re.findall(r"\b_\w+", str(item))}
                self.assertLessEqual(touched_in(file.read_text()), allowed, f"{place}: give it a seam, or this table")
