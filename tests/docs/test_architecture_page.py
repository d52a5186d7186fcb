"""docs/explanation/architecture.md has the packages in the order of the layers, and the states of a job."""

import re
import tomllib
from collections import Counter
from pathlib import Path

from django.conf import settings
from django.test import SimpleTestCase

from inference.models import TERMINAL, Status

ROOT = Path(settings.BASE_DIR)
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def packages(container: str) -> set[str]:
    folders = (file.parent for file in ROOT.joinpath(*container.split(".")).glob("*/__init__.py"))
    return {f"{container}.{folder.name}" for folder in folders} - {f"{container}.migrations", "api.management"}


def layers(container: str) -> dict[str, int]:
    """Package to its place, counted from the top; those of one layer share it."""
    (contract,) = (each for each in CONTRACTS if each.get("containers") == [container])
    names = enumerate(layer.split("|") for layer in contract["layers"])
    return {f"{container}.{name.strip()}": place for place, siblings in names for name in siblings}


class TestPage(SimpleTestCase):
    def test_it_lists_every_package_from_the_top_down(self) -> None:
        rows = re.findall(r"^\| (`[^|]*`) \|", PAGE[PAGE.index("## The packages") :], re.MULTILINE)
        listed = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
        for container in ("api", "inference", "inference.worker", "inference.engines"):
            ours = [name for name in listed if name.rpartition(".")[0] == container]
            self.assertEqual(set(ours), packages(container))
            self.assertEqual(ours, sorted(ours, key=layers(container).__getitem__))

    def test_no_folder_has_more_than_ten_modules(self) -> None:
        for top in ("api", "inference", "project", "tools"):
            modules = (file for file in (ROOT / top).rglob("*.py") if file.stem != "__init__")
            of_folder = Counter(file.parent.relative_to(ROOT).as_posix() for file in modules)
            crowded = {name: count for name, count in of_folder.items() if count > 10 and "migrations" not in name}
            self.assertEqual(crowded, {})

    def test_it_draws_the_states_of_a_job(self) -> None:
        diagram = PAGE[PAGE.index("stateDiagram") : PAGE.index("| change |")]
        self.assertEqual(set(re.findall(r"--> (\w+)", diagram)), set(Status.values))
        self.assertEqual(set(re.findall(r"(\w+) --> \[\*\]", diagram)), set(TERMINAL))

    def test_no_diagram_holds_a_semicolon_which_ends_a_statement_there(self) -> None:
        for diagram in re.findall(r"```mermaid\n(.*?)```", PAGE, re.DOTALL):
            self.assertNotIn(";", diagram)
