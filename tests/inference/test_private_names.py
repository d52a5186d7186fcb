"""Private names of libraries are each touched in one place, with the reason. An upgrade may break them."""

import ast
import functools
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import TestCase
from unittest.mock import patch

from django.conf import settings

from tests import sources
from tests.sources import Module

Table = dict[str, dict[str, str]]

# Names by which no library promises anything: by file, then by the library's module and name, why no other way is used.
PRIVATE: Table = {
    "api/server/middleware.py": {
        "django.http.request._stream": "a page's request is in a cycle, and keeps its body until garbage is collected",
        "django.http.request._body": "the same",
        "django.http.request._post": "the same",
        "django.http.request._files": "the same",
    },
    "inference/broker/kombu_redis/connections.py": {
        "redis.connection._sock": "an event loop polls the socket, and redis-py shows it by no other name",
    },
    "inference/engines/accelerate/prepacked_weights.py": {
        "torch._inductor.fx_passes.mkldnn_fusion._reorder_linear_weight": "to_mkldnn takes 1.5 times as long",
        "torch._inductor.fx_passes.mkldnn_fusion._linear_pointwise": "the same",
    },
}
# Names that a library documents for subclasses: by file, then by the library's module and name, where.
EXTENDED: Table = {
    "inference/broker/kombu_redis/channel.py": {
        f"kombu.transport.virtual.base.{name}": "its Channel says which methods a transport implements"
        for name in ("_put", "_size", "_purge", "_delete", "_new_queue", "_has_queue", "_queue_bind")
    },
    "inference/engines/inputs/pipeline_calls.py": {
        "transformers.pipelines.base._sanitize_parameters": "Adding a new pipeline, in the guides of transformers",
    },
}
# Attributes of a library's modules, classes and objects that are set from outside: by file, how each begins, and why.
ASSIGNED: Table = {
    "inference/admin/__init__.py": {"admin.site.": "Django documents these attributes"},
    "inference/catalog/specs.py": {"object.__setattr__(spec)": "a frozen dataclass of our own, while it is made"},
    "inference/engines/accelerate/prepacked_weights.py": {
        "self.layer.forward": "PyTorch calls what is set on a module"
    },
    "inference/engines/accelerate/shortcut.py": {
        "setattr(self.owner)": "the forward of a module, or an attribute of an engine of ours"
    },
    "inference/engines/backends/installation.py": {"self.model.forward": "PyTorch calls what is set on a module"},
    "inference/engines/generation/generate_calls.py": {
        "pipe.forward": "a pipeline's step, by its documented name",
        "pipe.postprocess": "the same",
    },
    "inference/engines/pipeline/engine.py": {"setattr(self.pipe)": "a pipeline's steps, by their documented names"},
    "inference/engines/runtime/precision.py": {"torch.backends.": "PyTorch documents these flags"},
    "inference/store/connections.py": {"connection.is_own": "an attribute of our own database engine"},
    "inference/store/job_rows.py": {
        "setattr(job)": "a model of our own",
        "delattr(job)": "Django documents that a field is then deferred",
    },
    "inference/telemetry/logs.py": {
        "sys.excepthook": "Python documents that programs assign it",
        "threading.excepthook": "the same",
        "logging.getLogger(name).propagate": "Python documents this attribute",
    },
    "inference/worker/celery_worker/consumer.py": {
        "conn.ensure_connection": "Celery passes no longest pause to this one connection, and has no setting for it",
    },
    "inference/worker/celery_worker/setup.py": {
        "program.safe_say": "Celery says in a signal handler that it stops, by no logger",
    },
}
OF_DATA = {  # documented
    "_meta", "_state", "_default_manager", "_exit", "_fields_", "_replace", "_asdict", "_fields", "_missing_",
}  # fmt: skip
SETTERS = ("setattr", "delattr", "object.__setattr__")
BY_TEXT = (*SETTERS, "getattr", "hasattr")
PATCHED = (("transformers", "Pipeline"), ("torch.nn", "Module"), ("kombu", "Connection"))  # whose methods are watched


def find_private_names(name: str, source: Module) -> Iterator[str]:
    """Yield the private names of libraries: read off others, inherited, imported, or given as texts."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Attribute(value=value, attr=attr) if not is_own(value):
                yield attr
            case ast.ClassDef():
                yield from sources.find_inherited_names(name, node).intersection(find_own_names(node))
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                of = getattr(node, "module", None) or ""
                yield from (part for each in names for part in f"{of}.{each.name}".split("."))
            case ast.Call(func=ast.Name(id=function), args=[_, ast.Constant(value=text), *_]) if function in BY_TEXT:
                yield str(text)
            case ast.For(iter=ast.Tuple(elts=texts)):
                yield from (str(text.value) for text in texts if isinstance(text, ast.Constant))


def find_own_names(node: ast.ClassDef) -> Iterator[str]:
    """Yield the names that a class defines, or uses of itself."""
    for each in ast.walk(node):
        match each:
            case ast.Attribute(value=value, attr=attr) if is_own(value):
                yield attr
            case ast.FunctionDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name


def find_assignments(source: Module) -> Iterator[str]:
    """Yield what is set of a library: attributes of what is imported, methods of objects, and modules."""
    methods = find_methods()
    for node in ast.walk(source.tree):
        match node:
            case ast.Attribute(value=value, attr=attr, ctx=ast.Store() | ast.Del()) if not is_own(value):
                if attr in methods or source.is_of_library(value):
                    yield ast.unparse(node)
            case ast.Subscript(value=value, ctx=ast.Store()) if ast.unparse(value) == "sys.modules":
                yield "sys.modules"
            case ast.Call(func=function, args=[of, *_]):
                called = ast.unparse(function)
                is_set = called in SETTERS and not is_own(of)
                is_copied = called == "vars" and source.is_of_library(of)
                if is_set or is_copied or called.endswith(("module_from_spec", "__new__")):
                    yield f"{called}({ast.unparse(of)})"


@functools.cache
def find_methods() -> set[str]:
    """Return the names of the methods of classes whose objects are not ours to patch."""
    classes = (found[1] for place in PATCHED if (found := sources.find_class(*place)))
    defined = (each for node in classes for each in node.body if isinstance(each, ast.FunctionDef))
    return {"forward", *(each.name for each in defined if "property" not in map(ast.unparse, each.decorator_list))}


def is_own(node: ast.expr) -> bool:
    match node:
        case ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super"), args=[]):
            return True
    return False


def is_private(name: str) -> bool:
    return bool(re.fullmatch(r"_[a-zA-Z]\w*", name)) and name not in OF_DATA


def find_module_names() -> Iterator[tuple[str, str]]:
    """Yield the path and the name of each of our modules."""
    for package in sources.OURS:
        for path in (settings.BASE_DIR / package).rglob("*.py"):
            if "migrations" not in path.parts:
                place = path.relative_to(settings.BASE_DIR)
                yield str(place), ".".join(place.with_suffix("").parts).removesuffix(".__init__")


EVERY_WAY = """
import sys, django.db, importlib.util, _thread
from asyncio import _gather
from django import views

class Base(views.View):
    own = 1

class Own(Base):
    _mine = 1

    def read(self):
        return self._allowed_methods() + self._mine, model._read, getattr(model, "_text")

for name in ("_each", "other"):
    print(name)
sys.excepthook = django.db.connections = model.forward = print
setattr(model, "forward", print)
sys.modules["sys"] = importlib.util.module_from_spec(spec)
vars(django), Own.__new__(Own)
"""


class PrivateNameTests(TestCase):
    def test_no_other_name_is_touched(self) -> None:
        for place, name in find_module_names():
            rows = {**PRIVATE.get(place, {}), **EXTENDED.get(place, {})}
            source = sources.read_module(name)
            assert source is not None
            found = {each for each in find_private_names(name, source) if is_private(each)}
            self.assertEqual(found, {row.rpartition(".")[2] for row in rows}, f"{place}: find another way, or a row")

    def test_nothing_else_of_a_library_is_set(self) -> None:
        for place, name in find_module_names():
            rows = ASSIGNED.get(place, {})
            source = sources.read_module(name)
            assert source is not None
            found = set(find_assignments(source))
            unknown = [each for each in found if not each.startswith(tuple(rows))]
            unused = [row for row in rows if not any(each.startswith(row) for each in found)]
            self.assertEqual((unknown, unused), ([], []), f"{place}: find another way, or a row")

    def test_each_name_is_in_the_version_that_is_installed(self) -> None:
        for row in (row for table in (PRIVATE, EXTENDED) for rows in table.values() for row in rows):
            module, _, name = row.rpartition(".")
            path = sources.find_source(module)
            assert path is not None, module
            self.assertRegex(path.read_text(encoding="utf-8"), rf"\b{name}\b", f"{module} has it no more")

    def test_every_way_is_seen(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "made_for_this_test.py").write_text(EVERY_WAY)
        self.enterContext(patch.object(sys, "path", [*sys.path, str(folder)]))
        source = sources.read_module("made_for_this_test")
        assert source is not None
        found = {each for each in find_private_names("made_for_this_test", source) if is_private(each)}
        self.assertEqual(found, {"_allowed_methods", "_gather", "_thread", "_read", "_text", "_each"})
        self.assertEqual(
            set(find_assignments(source)),
            {
                "sys.excepthook",
                "django.db.connections",
                "model.forward",
                "setattr(model)",
                "sys.modules",
                "importlib.util.module_from_spec(spec)",
                "vars(django)",
                "Own.__new__(Own)",
            },
        )
