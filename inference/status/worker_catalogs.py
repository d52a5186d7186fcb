"""The models of the living workers' catalogs, by revision and state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from inference.catalog import specs
from inference.catalog.changes import Changes
from inference.catalog.specs import Catalog
from inference.models import Worker
from inference.status import workers
from inference.status.workers import Remembered

SETTLED = ("ready", "not loaded", "draining")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class CatalogEntry:
    """An entry of a model as workers have it, and its state there."""

    model: str  # its weights; without any, its engine
    revision: str
    state: str  # "ready", "loading", "failed", "draining", or "not loaded"
    why: str  # the reason of a failure; empty without one


def list_worker_entries(worker: Worker) -> list[dict[str, Any]]:
    """Return the entries of a worker's catalog; a worker of an earlier version has none."""
    return list((worker.catalog or {}).get("models", ()))


def count_entries(living: Iterable[Worker]) -> dict[str, Counter[CatalogEntry]]:
    """Return by model how many workers have each entry of it."""
    found: dict[str, Counter[CatalogEntry]] = {}
    for worker in living:
        for entry in list_worker_entries(worker):
            run = CatalogEntry(**{key: entry[key] for key in ("model", "revision", "state", "why")})
            found.setdefault(entry["name"], Counter())[run] += 1
    return found


@Remembered
def count_living_entries() -> dict[str, Counter[CatalogEntry]]:
    return count_entries(workers.select_living().only("catalog"))


def compare_with_wanted(living: Iterable[Worker], wanted: Catalog) -> Changes:
    """Return what the wanted catalog changes for these workers."""
    known = [(entry["name"], entry["digest"]) for worker in living for entry in list_worker_entries(worker)]
    names = {name for name, _ in known}
    same = {
        name
        for name in names & wanted.keys()
        if {key for other, key in known if other == name} == {wanted[name].digest}
    }
    return Changes(
        added=tuple(name for name in wanted if name not in names),
        changed=tuple(name for name in wanted if name in names - same),
        removed=tuple(sorted(names - wanted.keys())),
    )


def count_failed_loads(worker: Worker) -> dict[str, int]:
    """Return how often the worker has tried in vain to load each of its entries, by digest.

    Entries of a worker of an earlier version, and of models that are loaded when jobs ask for them, have no such
    number.
    """
    return {entry["digest"]: entry["failures"] for entry in list_worker_entries(worker) if "failures" in entry}


def explain_lasting_delay(worker: Worker, wanted: Catalog, known: Mapping[str, int]) -> Iterator[str]:
    """Yield sentences on why this worker does not run what is wanted, where waiting does not help.

    A failure counts only if it has happened again: `known` is how often each entry had failed before, by digest.
    """
    has = worker.catalog or {}
    if has.get("problem"):
        yield f"{worker.name} takes nothing over: {has['problem']}"
    elif has.get("digest") == specs.digest_catalog(wanted):
        for entry in list_worker_entries(worker):
            if entry["state"] == "failed" and not _is_tried_again(entry, known):
                yield f"{worker.name} could not load {_named(entry)}: {entry['why']}"


def describe_delay(worker: Worker, wanted: Catalog) -> str:
    """Return what is still to happen until this worker runs what is wanted; an empty string when it does."""
    if (worker.catalog or {}).get("digest") != specs.digest_catalog(wanted):
        return f"{worker.name} has not taken over the file"
    found = list_worker_entries(worker)
    failed = [_named(entry) for entry in found if entry["state"] == "failed"]
    loading = [_named(entry) for entry in found if entry["state"] not in ("failed", *SETTLED)]
    again = f"{worker.name} tries again to load {', '.join(failed)}" if failed else ""
    return ", ".join(filter(None, (f"{worker.name} loads {', '.join(loading)}" if loading else "", again)))


def _is_tried_again(entry: dict[str, Any], known: Mapping[str, int]) -> bool:
    """Return True if the entry's failure is an old one, after which the worker has not tried again."""
    return "failures" in entry and entry["failures"] <= known.get(entry["digest"], 0)


def find_unassigned_models(living: Iterable[Worker], wanted: Catalog) -> list[str]:
    """Return the models that none of these workers was started for."""
    return sorted(wanted.keys() - {entry["name"] for worker in living for entry in list_worker_entries(worker)})


def _named(entry: dict[str, Any]) -> str:
    return f"{entry['name']} ({entry['revision']})" if entry["revision"] else str(entry["name"])
