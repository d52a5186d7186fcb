"""The display of text that others wrote: no character in it acts on the reader's screen."""

import re
import unicodedata

# The characters, of those that `escape_text` escapes, that turn, hide or steer text beside them. They are found fast.
_STEERING = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def escape_text(text: str) -> str:
    r"""Return the text with control, formatting, separating and surrogate characters as \uXXXX.

    None of them may act on the reader's screen.
    """
    if text.isprintable():
        return text
    return "".join(c if _is_harmless(c) else f"\\u{ord(c):04x}" for c in text)


def escape_web_page(text: str) -> str:
    r"""Return a whole page with the characters that steer text as \uXXXX. Our own text has no such character."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def escape_line(text: object) -> str:
    """Return the text in one line, as `escape_text` shows it."""
    return " ".join(escape_text(str(text)).split())


def _is_harmless(character: str) -> bool:
    category = unicodedata.category(character)
    return character in "\n\t" or not (category.startswith("C") or category in ("Zl", "Zp"))
