"""One thing that needs attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

Key = tuple[str, tuple[str, ...]]  # a code, and what it is about


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    code: str
    text: str
    todo: str
    # ("model" or "paused", name), ("worker", id), ("failed", model, code), ("webhooks",)
    about: tuple[str, ...] = ()
    causes: tuple[Key, ...] = ()  # items of which this is a consequence, where these are said too
    follows: bool = False  # from the last item above it that follows from none

    @property
    def key(self) -> Key:
        return self.code, self.about


def arranged(items: Sequence[Item]) -> list[Item]:
    """Put each item below its cause, and those that have several causes below the first that has the same ones.

    What comes first in `items` is the gravest: a cause is as grave as the gravest of its consequences."""
    said = {item.key: item for item in reversed(items)}
    first_of: dict[tuple[str, tuple[Key, ...]], Item] = {}
    below: dict[Item, list[Item]] = {}
    for item in items:
        below.setdefault(_root(item, said, first_of), []).append(item)
    return [
        replace(item, follows=item is not root)
        for root, members in below.items()
        for item in (root, *(member for member in members if member is not root))
    ]


def _root(item: Item, said: Mapping[Key, Item], first_of: dict[tuple[str, tuple[Key, ...]], Item]) -> Item:
    while causes := tuple(key for key in item.causes if key in said):
        if len(causes) > 1:
            return first_of.setdefault((item.code, causes), item)
        item = said[causes[0]]
    return item
