"""One thing that needs attention."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    code: str
    text: str
    todo: str
    # ("model" or "paused", name), ("worker", id), ("failed", model, code), ("webhooks",)
    about: tuple[str, ...] = ()
