"""Change the service's code by one line at a time, and see whether its tests fail: `python -m tests.mutants`.

A mutant that lives is a promise that no test holds, code that nothing needs, or a change that changes nothing: look at
it. Text, log lines, type hints and decorators stay as they are. Each mutant is tested in a copy of the tree, by one run
that ends at its first failure: of the modules that import the changed one, those of its package first (tests/inference/
PACKAGE for inference/PACKAGE), and of the rest of its package's. Django runs first what needs no transactions of its
own, which costs least. End-to-end tests are run last, and only where `--also` names them. A module that fails on the
unchanged tree, too, kills nothing.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests import second_look

ROOT = Path(__file__).parent.parent
SKIPPED = ("inference/migrations/", "inference/telemetry/", "inference/status/metrics.py")
SMALL = 3  # larger integers are sizes and patience, where one more changes nothing
SWAPPED = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
Span = tuple[int, int]  # bytes of a file, from and to
LIMIT_S = 300.0  # that tests of a mutant may take: one that needs more is killed
ALIVE = "ALIVE"
say = functools.partial(print, sep="\n", flush=True)


class Mutant(NamedTuple):
    """A file of the tree with one change."""

    path: str
    line: int
    kind: str
    before: str
    after: str

    @property
    def diff(self) -> str:
        before, after = (text.splitlines(keepends=True) for text in (self.before, self.after))
        return "".join(difflib.unified_diff(before, after, self.path, self.path, n=1))


def find_mutants(path: str, source: str) -> Iterator[Mutant]:
    """Yield every mutant of a file."""
    text = source.encode()  # the tree counts bytes
    starts = [0, *itertools.accumulate(map(len, text.splitlines(keepends=True)))]

    def span(node: Any) -> Span:
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    for node in _walk(ast.parse(source)):
        for kind, (start, end), new in _changes(node, span, lambda part: f"({text[slice(*span(part))].decode()})"):
            after = (text[:start] + new.encode() + text[end:]).decode()
            yield Mutant(path, text.count(b"\n", 0, start) + 1, kind, source, after)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that decide what the code does."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Expr) and ast.unparse(node).startswith("logg")):
        return
    yield node
    types = getattr(node, "annotation", None), getattr(node, "returns", None)
    for child in ast.iter_child_nodes(node):
        if child not in (*types, *getattr(node, "decorator_list", ())):
            yield from _walk(child)


def _changes(node: Any, span: Callable[[Any], Span], code: Callable[[Any], str]) -> Iterator[tuple[str, Span, str]]:
    """Yield the kind of each change of a node, which bytes it replaces, and by what."""
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.comprehension(ifs=[test, *_]):
            yield "condition negated", span(test), f"(not {code(test)})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not dropped", span(node), code(operand)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield "comparison swapped", span(node), f"{code(left)} {SWAPPED[type(op)]} {code(right)}"
        case ast.BoolOp(op=op, values=values):
            yield "and/or swapped", span(node), (" or " if isinstance(op, ast.And) else " and ").join(map(code, values))
        case ast.Expr(value=ast.Call()):
            yield "call removed", span(node), "pass"
        case ast.Constant(value=bool(value)):
            yield "True/False swapped", span(node), str(not value)
        case ast.Constant(value=int(value)) if value < SMALL:
            yield "integer off by one", span(node), str(value + 1)


def draw(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return `count` of the mutants, of each kind as many as of any other."""
    shuffled, of_kind = random.Random(seed).sample(mutants, len(mutants)), defaultdict[str, list[Mutant]](list)
    for mutant in shuffled:
        of_kind[mutant.kind].append(mutant)
    return [mutant for each in itertools.zip_longest(*of_kind.values()) for mutant in each if mutant][:count]


def find_tests(root: Path, path: str) -> list[str]:
    """Return the test modules that most likely see a change of the file, nearest first."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    parent, _, name = module.rpartition(".")
    imports = re.compile(rf"(from|import) {re.escape(module)}\b|from {re.escape(parent)} import (\([^)]*|.*)\b{name}\b")
    folders = (root / "tests" / folder for folder in Path(path).parents)
    of_package = sorted(next(found for folder in folders if (found := [*folder.glob("test_*.py")])))
    of_all = [
        file
        for part in ("inference", "api", "tools", "client")
        for file in sorted((root / "tests" / part).rglob("test_*.py"))
    ]
    importing = [file for file in of_all if imports.search(file.read_text())]
    nearest = sorted(importing, key=lambda file: (file not in of_package, file.stem != f"test_{name}"))
    return [".".join(file.relative_to(root).with_suffix("").parts) for file in dict.fromkeys([*nearest, *of_package])]


class Tree:
    """A copy of the tree, in which tests run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run_unchanged = functools.cache(self._run)
        unwanted = shutil.ignore_patterns(".git", ".venv*", "var", ".*_cache", ".hypothesis", "node_modules")
        shutil.copytree(ROOT, folder, ignore=unwanted, symlinks=True)
        (folder / ".venv").symlink_to(ROOT / ".venv")

    def judge(self, mutant: Mutant, also: Sequence[str]) -> str:
        """Return what killed the mutant, `ALIVE`, or why that is not known."""
        file = self.folder / mutant.path
        age = file.stat().st_mtime_ns  # by which Python knows what it has compiled
        near = (f"--exclude-tag={second_look.TAG}", *find_tests(self.folder, mutant.path))
        for tests in (near, tuple(also)):
            file.write_text(mutant.after)
            killer = self._run(tests) if tests else ""
            file.write_text(mutant.before)
            os.utime(file, ns=(age, age))
            if killer:
                suspects = (tests[0], killer) if killer in tests else tests
                return f"unknown: without it, too, {killer}" if self._run_unchanged(suspects) else killer
        return ALIVE

    def _run(self, tests: tuple[str, ...]) -> str:
        """Return the module of the first test that fails, what else ended the run, or nothing."""
        command = [sys.executable, "manage.py", "test", "--noinput", "--failfast", *tests]
        env = {"DJANGO_TEST_PROCESSES": "1", "PYTHONDONTWRITEBYTECODE": "1", "DATA_DIR": f"{self.folder}/var"}
        with tempfile.TemporaryFile("w+") as out:
            run = subprocess.Popen(
                command, cwd=self.folder, env={**os.environ, **env}, stdout=out, stderr=out, start_new_session=True
            )
            try:
                if run.wait(LIMIT_S) == 0:
                    return ""
            except subprocess.TimeoutExpired:
                return f"{LIMIT_S:g} s are over"
            finally:
                if run.poll() is None:
                    os.killpg(run.pid, signal.SIGKILL)
                    run.wait()
            out.seek(0)
            failed = re.search(r"^(?:FAIL|ERROR): .*?(tests(?:\.\w+)*?\.test_\w+)", out.read(), re.MULTILINE)
        return failed[1] if failed else "no test can start"


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT / "inference"], help="files or folders to change")
    parser.add_argument("--count", type=int, default=50, help="how many mutants (default: 50)")
    parser.add_argument("--seed", type=int, default=1, help="which (default: 1)")
    parser.add_argument("--also", nargs="+", default=(), metavar="TESTS", help="to run where the others pass")
    options = parser.parse_args()
    files = [file for path in options.paths for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
    names = [name for file in files if not (name := str(file.resolve().relative_to(ROOT))).startswith(SKIPPED)]
    every = [mutant for name in names for mutant in find_mutants(name, (ROOT / name).read_text())]
    drawn, table, alive = draw(every, options.count, options.seed), list[str](), list[str]()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Tree(Path(folder) / "tree")
        for number, mutant in enumerate(drawn, 1):
            started = time.monotonic()
            result = tree.judge(mutant, options.also)
            alive += [mutant.diff] if result == ALIVE else []
            table.append(f"{f'{mutant.path}:{mutant.line}':48} {mutant.kind:20} {result}")
            say(f"{number:3} of {len(drawn)} {table[-1]}, {time.monotonic() - started:.0f} s")
    say("", *alive, f"{'mutant':48} {'change':20} killed by", *table)
    say(f"{len(table)} of {len(every)} mutants, {len(alive)} alive")
    return 0


if __name__ == "__main__":
    sys.exit(main())
