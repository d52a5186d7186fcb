"""Which models a worker was started for: `--models`."""

from dataclasses import dataclass

from inference.catalog import words
from inference.catalog.specs import Catalog


@dataclass(frozen=True, slots=True)
class Asked:
    """Those named, also when they are gone for a while, or all; as they run on this worker's devices."""

    names: frozenset[str] | None = None
    on_gpu: bool = False

    def of(self, catalog: Catalog) -> Catalog:
        found = {name: spec for name, spec in catalog.items() if self.names is None or name in self.names}
        return {name: spec.on_gpu() for name, spec in found.items()} if self.on_gpu else found


def parse(models: Catalog, option: str | None) -> Asked:
    """Those that `--models` names, or all. Raises `ValueError` with what would be right."""
    if option is None:
        return Asked()
    names = frozenset(part.strip() for part in option.split(","))
    for name in sorted(names - models.keys()):
        raise ValueError(f"--models {option}: there is no model {name!r} in models.toml; {words.hint(name, models)}")
    return Asked(names)
