"""The checks of `manage.py check`: they refuse a bad models.toml by line, and warn of what the workers would miss."""

from __future__ import annotations

import difflib
import importlib.util
import symtable
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from inference.catalog import lookup, specs, tasks
from inference.engines.artifacts import weights
from inference.engines.backends import packages
from inference.engines.runtime.exception_diagnosis import describe_exception
from inference.errors import ModelUnavailable
from inference.webhooks import delivery

if TYPE_CHECKING:
    from django.apps import AppConfig


@register()
def check_models_file(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    try:
        models = lookup.get_catalog()
    except specs.CatalogError as error:
        return [Error(str(error), id="inference.E001")]
    return [warning for spec in models.values() for warning in _find_warnings(spec)]


@register()
def check_webhook_secret(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    if not settings.WEBHOOK_HOSTS:
        return []
    try:
        delivery.read_signing_key()
    except ValueError as error:
        return [Error(f"WEBHOOK_HOSTS is set, but {error}.", id="inference.E002")]
    return []


def _find_warnings(spec: specs.ModelSpec) -> Iterator[CheckMessage]:
    """Yield a warning for each thing that a worker would miss to serve this model.

    They are warnings and no errors: the process that runs the check may be on a host without models, and the other
    models are to be served beside one that is broken in whatever way.
    """
    for check in (find_task_problem, _find_engine_problem, _find_weights_problem, packages.find_problem):
        try:
            problem = check(spec)
        except Exception as error:  # a package runs its own code, a module may be no Python, a file may be unreadable
            problem = f"cannot be looked at: {describe_exception(error)}"
        if problem:
            yield Warning(f"[{spec.name}] {problem}", id="inference.W001")


def find_task_problem(spec: specs.ModelSpec) -> str:
    known = tasks.list_pipeline_tasks()
    if spec.engine != specs.TRANSFORMERS_ENGINE or spec.task in known:
        return ""
    close = difflib.get_close_matches(spec.task, known, 1)
    return f"task: {spec.task!r} is not served; " + (
        f"did you mean {close[0]!r}?" if close else f"served are {', '.join(known)}."
    )


def _find_engine_problem(spec: specs.ModelSpec) -> str:
    """Return why the engine's class or function cannot be found, or an empty text.

    The module is not run, as it may import torch. Only the packages that it lies in are imported.
    """
    module, _, attribute = spec.engine.partition(":")
    source = _read_module_source(module)
    if source is None:
        return (
            f"engine: there is no module {module!r} here. It must be importable from the project's folder on every host"
            " with a worker."
        )
    names = _list_defined_names(source)
    if not names or attribute in names:
        return ""
    close = difflib.get_close_matches(attribute, names, 1)
    return f"engine: {module} has no {attribute!r}" + (f"; did you mean {close[0]!r}?" if close else ".")


def _read_module_source(module: str) -> str | None:
    """Return the source of a module. It is None if there is no such module, and empty if the module has no source."""
    try:
        found = importlib.util.find_spec(module)
    except ImportError:
        return None
    if found is None:
        return None
    return Path(found.origin).read_text() if found.origin and found.origin.endswith(".py") else ""


def _list_defined_names(source: str) -> set[str]:
    """Return the names that a module defines or imports on its first level.

    The set is empty if only running the module would show its names.
    """
    symbols = symtable.symtable(source, "engine", "exec").get_symbols()
    names = {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}
    return set() if "__getattr__" in names or "import *" in source else names


def _find_weights_problem(spec: specs.ModelSpec) -> str:
    """Return why the weights of the model cannot be used, or an empty text.

    The `model` of a custom engine is not checked, as it may be anything.
    """
    if not spec.model or not spec.is_built_in:
        return ""
    try:
        weights.check_folder_or_revision(spec)
    except ModelUnavailable as error:
        return f"model: {error.message}"
    return ""
