"""The requirements name what the code imports, and the lock has the versions of all that they bring."""

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

from django.conf import settings
from django.test import SimpleTestCase, tag
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(settings.BASE_DIR)
SERVICE, DEVELOPMENT, FLOWER = "requirements.txt", "requirements-dev.txt", "requirements-flower.txt"
TESTED, BENCHMARKS = "requirements-models-test.txt", "benchmarks/requirements.txt"
CLIENTS = ROOT / "tests" / "clients" / "calls"  # of environments of their own
EXTRAS = ("requirements-openvino.txt", "requirements-quantized.txt", "requirements-otel.txt")  # of who asks for them
OURS = {"project", "inference", "api", "tools", "batch_inference_client", "tests", "benchmarks", "examples"}
CUDA = re.compile(r"(nvidia|cuda)-|triton$")  # whose versions follow the build of torch


def pins(file: str) -> dict[str, str]:
    """Package to version."""
    lines = re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==([\w.]+)", (ROOT / file).read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in lines}


def requirements(file: str) -> list[Requirement]:
    lines = (line.partition("#")[0].strip() for line in (ROOT / file).read_text().splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith("-r ")]


def imported(*folders: str) -> set[str]:
    """The packages whose modules the Python files of these folders import."""
    owners = packages_distributions()
    files = (file for folder in folders for file in ROOT.glob(f"{folder}/**/*.py") if CLIENTS not in file.parents)
    modules = {module for file in files for module in modules_of(ast.parse(file.read_text()))}
    theirs = modules - OURS - sys.stdlib_module_names
    return {canonicalize_name(owners.get(module, [module])[0]) for module in theirs}


def modules_of(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def imported_at_start(module: str, seen: set[str]) -> set[str]:
    """The packages of others that are imported with a module of ours, by it and by all that it imports at its start."""
    place = ROOT / module.replace(".", "/")
    file = next((file for file in (place / "__init__.py", place.with_suffix(".py")) if file.exists()), None)
    if module in seen or file is None:
        return set()
    seen.add(module)
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            if name.partition(".")[0] not in OURS:
                found.add(name.partition(".")[0])
            for end in range(1, name.count(".") + 2):  # its packages, too
                found |= imported_at_start(".".join(name.split(".")[:end]), seen)
    return found - sys.stdlib_module_names


def installed(direct: list[Requirement]) -> dict[str, str]:
    """Package to version: what these requirements and those of what they bring have brought to this environment."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    pending = [(requirement.name, extra) for requirement in direct for extra in ("", *requirement.extras)]
    while pending:
        name, extra = entry = pending.pop()
        if entry in seen or CUDA.match(name):
            continue
        seen.add(entry)
        package = distribution(name)
        found[canonicalize_name(name)] = package.version.partition("+")[0]
        for needed in map(Requirement, package.requires or []):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                pending += [(needed.name, extra) for extra in ("", *needed.extras)]
    return found


@tag("pinned")  # `make newest` takes the pins away
class TestRequirements(SimpleTestCase):
    def test_what_the_service_imports_is_in_its_requirements(self) -> None:
        pinned = {name for file in (SERVICE, *EXTRAS) for name in pins(file)}
        self.assertEqual(imported("project", "inference", "api", "tools", "batch_inference_client") - pinned, set())

    def test_what_the_tests_import_is_in_the_requirements(self) -> None:
        pinned = {name for file in (SERVICE, DEVELOPMENT, TESTED, *EXTRAS) for name in pins(file)}
        self.assertEqual(imported("tests") - pinned, set())

    def test_what_the_benchmarks_import_is_in_the_requirements_of_their_environment(self) -> None:
        theirs = imported_at_start("benchmarks.__main__", set())
        self.assertIn("httptools", theirs)
        brought = {*pins(BENCHMARKS), "kombu"}  # celery brings it
        self.assertEqual({canonicalize_name(name) for name in theirs} - brought, set())

    def test_every_requirement_is_exact(self) -> None:
        for file in (SERVICE, DEVELOPMENT, FLOWER, TESTED, BENCHMARKS, *EXTRAS):
            self.assertEqual(len(requirements(file)), len(pins(file)), file)


@tag("pinned")
class TestLock(SimpleTestCase):
    lock = pins("requirements.lock")

    def test_it_was_made_of_these_requirements(self) -> None:
        entries = re.findall(r"^([\w.-]+)==.*\n((?: +# .*\n)+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
        for file in (SERVICE, DEVELOPMENT, "requirements-otel.txt"):
            made_of = {name: self.lock[name] for name, why in entries if re.search(rf"-r {file}$", why, re.MULTILINE)}
            self.assertEqual(made_of, pins(file), "make lock")

    def test_it_has_all_that_they_brought_here_at_the_version_that_is_installed(self) -> None:
        brought = installed(
            [*requirements(SERVICE), *requirements(DEVELOPMENT), *requirements("requirements-otel.txt")]
        )
        self.assertEqual({name: self.lock.get(name) for name in brought}, brought, "make lock")
