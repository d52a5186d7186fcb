"""The models of this service, by name: what the file at MODELS_FILE lists."""

from __future__ import annotations

from django.conf import settings

from inference.catalog import specs, words
from inference.catalog.specs import Catalog, ModelSpec
from inference.errors import UnknownModel


def models() -> Catalog:
    """Raises `CatalogError`."""
    return specs.load(settings.MODELS_FILE)


def spec_of(model: str) -> ModelSpec:
    """Raises `UnknownModel`."""
    try:
        return models()[model]
    except KeyError:
        known = ", ".join(sorted(models()))
        raise UnknownModel(f"There is no model {words.name(model)!r}. Known models: {known}.") from None
