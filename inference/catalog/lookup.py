"""The models of this service by name, as the file at MODELS_FILE lists them.

A process that serves follows the file, so that models are added and removed without a restart.
"""

from __future__ import annotations

import functools
import logging
import threading
from pathlib import Path

from django.conf import settings

from inference.catalog import changes, reader
from inference.catalog.specs import Catalog, CatalogError, ModelSpec
from inference.errors import ModelsFileRefused, UnknownModel
from inference.values.error_phrases import truncate_name

logger = logging.getLogger(__name__)

LOOK_S = 2.0  # between two looks at the file
SETTLE_S = 0.3  # between the two looks that a change takes


def get_catalog() -> Catalog:
    """Return the catalog, which is the same object until the file changes.

    Raises `CatalogError` if this process has never read a good file.
    """
    file = _get_models_file(settings.MODELS_FILE)
    return file.read_first_catalog() if file.catalog is None else file.catalog


def get_catalog_or_empty() -> Catalog:
    """Return what `get_catalog` does; an empty catalog if this process has never read a good file.

    `find_file_problem` returns the reason then.
    """
    try:
        return get_catalog()
    except CatalogError:
        return {}


def find_file_problem() -> str:
    """Return why this process does not use the file as it is now; an empty string if it does."""
    return _get_models_file(settings.MODELS_FILE).problem


def get_last_spec(model: str) -> ModelSpec | None:
    """Return the last entry of a model, or None.

    The model may be gone from the file since this process began to follow it: clients still ask for its jobs.
    """
    get_catalog_or_empty()
    return _get_models_file(settings.MODELS_FILE).known.get(model)


def get_spec(model: str) -> ModelSpec:
    """Return the entry of a model.

    Raises `UnknownModel`, and `ModelsFileRefused` if this process has never read a good file.
    """
    try:
        return get_catalog()[model]
    except CatalogError as error:
        raise ModelsFileRefused(str(error)) from None
    except KeyError:
        known = ", ".join(sorted(get_catalog()))
        raise UnknownModel(f"There is no model {truncate_name(model)!r}. Known models: {known}.") from None


class ModelsFile:
    """The models file with its catalog, which is the last one without an error and is replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.catalog: Catalog | None = None
        self.known: Catalog = {}  # by name: the last entry of each
        self.problem = ""
        self._lock = threading.Lock()  # `read_first_catalog` and `reread_if_changed` take over one text after the other
        self._seen: str | None = None  # the text at the last look
        self._taken: str | None = None  # the text that was taken over or refused last
        self._refused: str | None = None  # the text that `read_first_catalog` refused: it is not parsed again

    def read_first_catalog(self) -> Catalog:
        with self._lock:
            if self.catalog is not None:
                return self.catalog
            text = None
            try:
                text = reader.read_models_file_text(self.path)
                if text == self._refused:
                    raise CatalogError(self.problem)
                catalog = reader.parse_catalog(text, str(self.path))
            except CatalogError as error:
                self._refused, self.problem = text, str(error)
                raise
            self._seen, self._taken, self.problem = text, text, ""
            return self._use_catalog(catalog)

    def _use_catalog(self, catalog: Catalog) -> Catalog:
        self.catalog, self.known = catalog, {**self.known, **catalog}
        return catalog

    def reread_if_changed(self) -> bool:
        """Look at the file, take over a text that two looks in a row have found, and return True if they did.

        Editors write in steps, and half a file may be a good one, with fewer models.
        """
        with self._lock:
            try:
                text, problem = reader.read_models_file_text(self.path), ""
            except CatalogError as error:
                text, problem = "", str(error)
            seen, self._seen = self._seen, text + problem
            if self._seen == seen != self._taken:
                self._taken = seen
                self._take_over_text(text, problem)
            return self._seen == seen

    def _take_over_text(self, text: str, problem: str) -> None:
        try:
            if problem:
                raise CatalogError(problem)
            after = reader.parse_catalog(text, str(self.path))
        except CatalogError as error:
            self.problem = str(error)
            logger.error("%s Nothing changes before that is put right.", error)
            return
        self.problem = ""
        if self.catalog is None:
            self._use_catalog(after)
        elif found := changes.compare_catalogs(self.catalog, after):
            logger.info("%s: %s", self.path, found)
            self._use_catalog(after)


class Follower(threading.Thread):
    """A thread that looks at the file again and again, and does nothing else: a file system may not answer."""

    def __init__(self) -> None:
        super().__init__(name="models-file", daemon=True)
        self._wakeup = threading.Event()
        self._stopping = False

    def run(self) -> None:
        while not self._stopping:
            self._wakeup.wait(LOOK_S if self._look_at_file() else SETTLE_S)
            self._wakeup.clear()

    def _look_at_file(self) -> bool:
        """Look at the file; if a bug of the reader raises an error, log it, as the next text may be read."""
        try:
            return _get_models_file(settings.MODELS_FILE).reread_if_changed()
        except Exception:
            logger.exception("the models file is not understood, it is looked at again")
            return True

    def look_at_file_soon(self) -> None:
        self._wakeup.set()

    def stop(self) -> None:
        self._stopping = True
        self._wakeup.set()
        self.join()


@functools.lru_cache(maxsize=8)
def _get_models_file(path: Path) -> ModelsFile:
    return ModelsFile(path)


@functools.lru_cache(maxsize=1)
def start_follower() -> Follower:
    """Start the follower of this process, which goes on serving meanwhile, and return it."""
    follower = Follower()
    follower.start()
    return follower
