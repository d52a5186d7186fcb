"""Modules and classes as their sources have them: nothing is imported, so torch costs no more than its text."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple

OURS = ("api", "batch_inference_client", "inference", "project", "tools")


class Module(NamedTuple):
    tree: ast.Module
    imported: dict[str, tuple[str, str]]  # by name here: the module, and the name there or ""
    stars: list[str]  # modules all of whose names are imported
    classes: dict[str, ast.ClassDef]  # by name, a class within another one as OUTER.INNER

    def is_of_library(self, node: ast.expr) -> bool:
        """Return True if the first name of an expression such as `a.b().c` is imported from a library."""
        while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
            node = node.func if isinstance(node, ast.Call) else node.value
        return isinstance(node, ast.Name) and node.id in self.imported and not is_ours(self.imported[node.id][0])


def is_ours(module: str) -> bool:
    return module.partition(".")[0] in OURS


@functools.cache
def find_source(module: str) -> Path | None:
    """Find a module's source without running it or its packages."""
    parts = Path(*module.split("."))
    places = (Path(folder) / each for folder in sys.path for each in (parts / "__init__.py", parts.with_suffix(".py")))
    return next(filter(Path.is_file, places), None)


@functools.cache
def read_module(name: str) -> Module | None:
    path = find_source(name)
    if path is None:
        return None
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    imported: dict[str, tuple[str, str]] = {}
    stars: list[str] = []
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            for part in node.names:
                top = part.name.partition(".")[0]
                imported[part.asname or top] = part.name if part.asname else top, ""
        elif isinstance(node, ast.ImportFrom):
            origin = resolve_name("." * node.level + (node.module or ""), package)
            imported |= {part.asname or part.name: (origin, part.name) for part in node.names}
            stars += [origin] * (node.names[0].name == "*")
    return Module(tree, imported, stars, dict(_classes(tree)))


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, ast.stmt | ast.excepthandler):
            yield from _statements(child)


def _classes(node: ast.AST, within: str = "") -> Iterator[tuple[str, ast.ClassDef]]:
    for statement in _statements(node):
        if isinstance(statement, ast.ClassDef):
            yield within + statement.name, statement
            yield from _classes(statement, f"{within}{statement.name}.")


@functools.cache
def find_class(module: str, name: str) -> tuple[str, ast.ClassDef] | None:
    """Return the class that has a dotted name in a module, with the module that defines it, or None."""
    source, (head, _, rest) = read_module(module), name.partition(".")
    if source is None:
        return None
    if name in source.classes:
        return module, source.classes[name]
    origin, there = source.imported.get(head, (module, head))
    if there and find_source(f"{origin}.{there}"):
        origin, there = f"{origin}.{there}", ""
    places = [(origin, ".".join(filter(None, (there, rest)))), *((star, name) for star in source.stars)]
    return next(filter(None, (find_class(*place) for place in places if place != (module, name))), None)


def find_inherited_names(module: str, node: ast.ClassDef) -> set[str]:
    """Return the names that a class of a module may have from bases in libraries: what these define or use."""
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)  # as in `Generic[T]`
    return {name for base in bases for name in _find_names(module, ast.unparse(base))}


@functools.cache
def _find_names(module: str, name: str) -> frozenset[str]:
    found = find_class(module, name)
    if found is None:
        return frozenset()
    home, node = found
    return frozenset(find_inherited_names(home, node).union(() if is_ours(home) else _defined(node)))


def _defined(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
    for each in ast.walk(node):
        match each:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                yield name
