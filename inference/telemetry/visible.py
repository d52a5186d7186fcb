"""Text of others, shown as what it is: nothing in it acts on who reads it."""

import re
import unicodedata

# Of those that `visible` shows, the ones that turn, hide or steer what stands beside them: quick to find in a page.
_STEERING = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def visible(text: str) -> str:
    """Control, formatting, separating and surrogate characters as \\uXXXX: none may act on the reader's screen."""
    if text.isprintable():
        return text
    return "".join(c if _is_harmless(c) else f"\\u{ord(c):04x}" for c in text)


def page(text: str) -> str:
    """The same of a whole page, in which nothing of ours is such a character."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def line(text: object) -> str:
    """All of it in one line."""
    return " ".join(visible(str(text)).split())


def _is_harmless(character: str) -> bool:
    category = unicodedata.category(character)
    return character in "\n\t" or not (category.startswith("C") or category in ("Zl", "Zp"))
