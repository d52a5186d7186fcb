"""The models that this worker is to run: those of the models file that `--models` selects."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from django.conf import settings

from inference.catalog import lookup
from inference.catalog.specs import Catalog, digest_catalog
from inference.models import WAITING, Job
from inference.values.error_phrases import suggest_name
from inference.worker.replicas.registry import ReplicaRegistry

LINGER_S = settings.WORKER_SILENT_S  # a web process may take jobs until it has seen that their model is gone


@dataclass(frozen=True, slots=True)
class ModelSelection:
    """The models that a worker was started for, as they run on its devices."""

    names: frozenset[str] | None = None  # also of models that are gone for a while; None selects all
    on_gpu: bool = False

    def select_entries(self, catalog: Catalog) -> Catalog:
        """Return the entries of `catalog` that are selected."""
        found = {name: spec for name, spec in catalog.items() if self.names is None or name in self.names}
        return {name: spec.with_gpu_limits() for name, spec in found.items()} if self.on_gpu else found


def parse_selection(models: Catalog, option: str | None) -> ModelSelection:
    """Read the option `--models`, a list of names with commas; None selects all.

    Raises `ValueError`, which says what would be right, for a name that `models` lacks.
    """
    if option is None:
        return ModelSelection()
    names = frozenset(part.strip() for part in option.split(","))
    for name in sorted(names - models.keys()):
        hint = suggest_name(name, models)
        raise ValueError(f"--models {option}: there is no model {name!r} in models.toml; {hint}")
    return ModelSelection(names)


class ServedModels:
    """The models that the worker runs, as the models file changes.

    A model that is gone from the file is run until no job of it is left.
    """

    def __init__(self, replicas: ReplicaRegistry, selection: ModelSelection) -> None:
        self.replicas = replicas
        self.selection = selection
        self._followed = lookup.get_catalog()
        self._left_at: dict[str, float] = {}  # monotonic: when each model left the file
        self._jobless: dict[str, float] = {}  # of each model without a job left: when it had left
        replicas.note_file_digest(digest_catalog(self._followed))

    def follow_models_file(self, has_no_jobs_of: Callable[[str], bool]) -> None:
        """Follow the models file, in the event loop.

        `has_no_jobs_of` returns True if this worker holds no job of a model.
        """
        replicas, models = self.replicas, lookup.get_catalog()
        if models is not self._followed:
            self._followed = models
            replicas.set_catalog(self.selection.select_entries(models))
            replicas.note_file_digest(digest_catalog(models))
            now = time.monotonic()
            self._left_at = {name: self._left_at.get(name, now) for name in replicas.removed_models}
        for name in replicas.removed_models & self._jobless.keys():
            # The model may have come back meanwhile.
            if self._jobless[name] == self._left_at[name] and has_no_jobs_of(name):
                replicas.drop_removed_model(name)

    def update_jobless_models(self) -> None:
        """Update which models have no job left, in another thread, which may wait for the database."""
        before = time.monotonic() - LINGER_S
        left = {name: left_at for name, left_at in list(self._left_at.items()) if left_at < before}
        self._jobless = {
            name: left_at
            for name, left_at in left.items()
            if not Job.objects.filter(model=name, status__in=WAITING).exists()
        }
