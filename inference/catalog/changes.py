"""The differences between two catalogs."""

from __future__ import annotations

from dataclasses import dataclass

from inference.catalog.specs import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)

    def __str__(self) -> str:
        kinds = (("added", self.added), ("changed", self.changed), ("removed", self.removed))
        return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds if names) or "nothing changes"


def compare_catalogs(before: Catalog, after: Catalog) -> Changes:
    return Changes(
        added=tuple(name for name in after if name not in before),
        changed=tuple(name for name in after if name in before and after[name].digest != before[name].digest),
        removed=tuple(name for name in before if name not in after),
    )
