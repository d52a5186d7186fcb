"""The items of the attention list, and their arrangement below their causes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

Key = tuple[str, tuple[str, ...]]  # an item's code, and what the item is about


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionItem:
    code: str
    text: str
    todo: str
    # its subject: ("model" or "paused", name), ("worker", id), ("failed", model, code), ("webhooks",) or
    # ("file batches",), or none
    about: tuple[str, ...] = ()
    causes: tuple[Key, ...] = ()  # items that this one follows from; those that are not listed do not count
    follows: bool = False  # True for a consequence of the last item above it that has False

    @property
    def key(self) -> Key:
        return self.code, self.about


def order_items_by_cause(items: Sequence[AttentionItem]) -> list[AttentionItem]:
    """Put each item below its cause.

    An item that has several causes goes below the first item of the same code that has the same causes.

    `items` begins with the gravest. A cause is as grave as the gravest of its consequences.
    """
    said = {item.key: item for item in reversed(items)}
    first_of: dict[tuple[str, tuple[Key, ...]], AttentionItem] = {}
    below: dict[AttentionItem, list[AttentionItem]] = {}
    for item in items:
        below.setdefault(_find_root(item, said, first_of), []).append(item)
    return [
        replace(item, follows=item is not root)
        for root, members in below.items()
        for item in (root, *(member for member in members if member is not root))
    ]


def _find_root(
    item: AttentionItem, said: Mapping[Key, AttentionItem], first_of: dict[tuple[str, tuple[Key, ...]], AttentionItem]
) -> AttentionItem:
    while causes := tuple(key for key in item.causes if key in said):
        if len(causes) > 1:
            return first_of.setdefault((item.code, causes), item)
        item = said[causes[0]]
    return item
