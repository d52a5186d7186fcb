"""How far workers are with what models.toml says, told by their rows."""

from typing import Any
from unittest import TestCase

from inference.catalog import reader, specs
from inference.fields.worker_documents import CatalogSnapshot
from inference.models import Worker
from inference.status import worker_catalogs

WANTED = reader.parse_catalog('[a]\nengine = "x:Y"\nrevision = "2"\n[b]\nengine = "x:Y"\n')


def entry(name: str, *, state: str = "ready", why: str = "", **values: str) -> dict[str, Any]:
    spec = WANTED.get(name) or specs.ModelSpec(name=name, engine="x:Y")
    shown = {"name": name, "model": "x:Y", "revision": spec.revision, "digest": spec.digest, "state": state, "why": why}
    return {**shown, **values}


def worker(*models: dict[str, Any], digest: str = specs.digest_catalog(WANTED), problem: str = "") -> Worker:
    return Worker(
        name="w", pid=1, catalog=CatalogSnapshot.read({"digest": digest, "problem": problem, "models": models})
    )


BEFORE = worker(entry("a", digest="1", revision="1"), entry("gone"), digest="of before")
LOADING = worker(entry("a", digest="1", revision="1"), entry("a", state="loading"), entry("b", state="loading"))
FAILED = worker(entry("a", digest="1", revision="1"), entry("a", state="failed", why="no weights"), entry("b"))
THERE = worker(entry("a"), entry("b"), entry("gone", state="draining"))
NEW_WORKER = Worker(name="w", pid=1)


class CatalogTests(TestCase):
    def test_the_changes_are_those_to_what_runs(self) -> None:
        self.assertEqual(
            str(worker_catalogs.find_catalog_changes([BEFORE], WANTED)), "added: b; changed: a; removed: gone"
        )
        self.assertEqual(
            str(worker_catalogs.find_catalog_changes([worker(entry("a"), entry("b"))], WANTED)), "nothing changes"
        )

    def test_what_is_still_to_happen_is_described(self) -> None:
        for row, expected in (
            (BEFORE, "w has not taken over the file"), (NEW_WORKER, "w has not taken over the file"),
            (LOADING, "w loads a (2), b"), (FAILED, "w tries again to load a (2)"), (THERE, ""),
        ):  # fmt: skip
            self.assertEqual(worker_catalogs.explain_pending_reload(row, WANTED), expected)

    def test_what_will_not_happen_is_listed_with_the_reason(self) -> None:
        for row, expected in (
            (BEFORE, []), (NEW_WORKER, []), (LOADING, []), (THERE, []),
            (FAILED, ["w could not load a (2): no weights"]),
            (worker(problem="line 3: no."), ["w takes nothing over: line 3: no."]),
        ):  # fmt: skip
            self.assertEqual(list(worker_catalogs.explain_failed_reload(row, WANTED, {})), expected)

    def test_what_failed_before_is_listed_once_it_has_failed_again(self) -> None:
        """Its cause may have been mended meanwhile."""
        for tries, expected in ((1, []), (2, ["w could not load a (2): no weights"])):
            row = worker(entry("a", state="failed", why="no weights") | {"failures": tries}, entry("b"))
            self.assertEqual(
                list(worker_catalogs.explain_failed_reload(row, WANTED, {WANTED["a"].digest: 1})), expected
            )
            self.assertEqual(worker_catalogs.count_failed_loads(row), {WANTED["a"].digest: tries})

    def test_models_that_no_worker_was_started_for_are_named(self) -> None:
        self.assertEqual(worker_catalogs.find_unselected_models([worker(entry("a"))], WANTED), ["b"])

    def test_workers_with_the_same_entry_in_the_same_state_are_counted_together(self) -> None:
        found = worker_catalogs.count_workers_by_entry([THERE, LOADING, FAILED, NEW_WORKER])
        shown = {(run.revision, run.state): count for run, count in found["a"].items()}
        self.assertEqual(shown, {("2", "ready"): 1, ("1", "ready"): 2, ("2", "loading"): 1, ("2", "failed"): 1})
