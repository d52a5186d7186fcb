"""The models of the living workers' catalogs, by revision and state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from inference.catalog import specs
from inference.catalog.changes import Changes
from inference.catalog.specs import Catalog
from inference.fields.worker_documents import EntrySnapshot, ModelState
from inference.models import Worker
from inference.status import workers
from inference.status.workers import Remembered


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class CatalogEntry:
    """An entry of a model as workers have it, and its state there."""

    model: str  # its weights; without any, its engine
    revision: str
    state: ModelState
    why: str  # the reason of a failure; empty without one


def count_workers_by_entry(living: Iterable[Worker]) -> dict[str, Counter[CatalogEntry]]:
    """Return by model how many workers have each entry of it."""
    found: dict[str, Counter[CatalogEntry]] = {}
    for worker in living:
        for entry in worker.catalog.models:
            run = CatalogEntry(model=entry.model, revision=entry.revision, state=entry.state, why=entry.why)
            found.setdefault(entry.name, Counter())[run] += 1
    return found


@Remembered
def count_living_entries() -> dict[str, Counter[CatalogEntry]]:
    return count_workers_by_entry(workers.select_living_workers().only("catalog"))


def find_catalog_changes(living: Iterable[Worker], wanted: Catalog) -> Changes:
    """Return what the wanted catalog changes for these workers."""
    known = [(entry.name, entry.digest) for worker in living for entry in worker.catalog.models]
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

    Entries of models that are loaded when jobs ask for them have no such number.
    """
    return {entry.digest: entry.failures for entry in worker.catalog.models if entry.failures is not None}


def explain_failed_reload(worker: Worker, wanted: Catalog, known: Mapping[str, int]) -> Iterator[str]:
    """Yield sentences on why this worker does not run what is wanted, where waiting does not help.

    A failure counts only if it has happened again: `known` is how often each entry had failed before, by digest.
    """
    has = worker.catalog
    if has.problem:
        yield f"{worker.name} takes nothing over: {has.problem}"
    elif has.digest == specs.digest_catalog(wanted):
        for entry in has.models:
            if entry.state is ModelState.FAILED and not _has_old_failure(entry, known):
                yield f"{worker.name} could not load {_format_entry_name(entry)}: {entry.why}"


def explain_pending_reload(worker: Worker, wanted: Catalog) -> str:
    """Return what is still to happen until this worker runs what is wanted; an empty string when it does."""
    if worker.catalog.digest != specs.digest_catalog(wanted):
        return f"{worker.name} has not taken over the file"
    found = worker.catalog.models
    failed = [_format_entry_name(entry) for entry in found if entry.state is ModelState.FAILED]
    loading = [_format_entry_name(entry) for entry in found if entry.state is ModelState.LOADING]
    again = f"{worker.name} tries again to load {', '.join(failed)}" if failed else ""
    return ", ".join(filter(None, (f"{worker.name} loads {', '.join(loading)}" if loading else "", again)))


def _has_old_failure(entry: EntrySnapshot, known: Mapping[str, int]) -> bool:
    """Return True if the entry's failure is an old one, after which the worker has not tried again."""
    return entry.failures is not None and entry.failures <= known.get(entry.digest, 0)


def find_unselected_models(living: Iterable[Worker], wanted: Catalog) -> list[str]:
    """Return the models that none of these workers was started for."""
    return sorted(wanted.keys() - {entry.name for worker in living for entry in worker.catalog.models})


def _format_entry_name(entry: EntrySnapshot) -> str:
    return f"{entry.name} ({entry.revision})" if entry.revision else entry.name
