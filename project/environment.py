"""Values of environment variables. An invalid one ends the program with a sentence that names its variable."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import tempfile
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import dj_database_url

ORIGIN = re.compile(r"http://[a-z0-9.-]+(?::(?!80$)\d+)?|https://[a-z0-9.-]+(?::(?!443$)\d+)?")
ON, OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


def read_flag(name: str, default: bool = False) -> bool:
    text = os.environ.get(name, str(int(default))).strip().lower()
    if text not in ON + OFF:
        refuse_value(name, f"must be 1 or 0, not {text!r}")
    return text in ON


def read_texts(name: str, default: str = "") -> list[str]:
    """Return the parts of a variable's text, which are separated by commas."""
    return [part.strip() for part in os.environ.get(name, default).split(",") if part.strip()]


def read_origins(name: str) -> list[str]:
    """Return sites as a browser names them, which are separated by commas in the variable."""
    found = read_texts(name)
    for origin in found:
        if not ORIGIN.fullmatch(origin):
            refuse_value(
                name, f"must be sites such as https://app.example.org or http://localhost:3000, not {origin!r}"
            )
    return found


def read_integer(name: str, default: int) -> int:
    """Return a whole number that is not negative."""
    text = os.environ.get(name, str(default))
    if not (text.isascii() and text.isdigit()):
        refuse_value(name, f"must be a whole number from 0 on, not {text!r}")
    return int(text)


def read_number(name: str, default: float) -> float:
    """Return a number that is not negative."""
    text = os.environ.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        refuse_value(name, f"must be a number from 0 on, not {text!r}")
    return value


def read_json_object(name: str, default: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object."""
    try:
        value = json.loads(os.environ[name]) if os.environ.get(name) else default
    except ValueError:
        value = None
    if not isinstance(value, dict):
        refuse_value(name, 'must be a JSON object such as {"bucket_name": "files"}')
    return value


def read_choice(name: str, choices: tuple[str, ...], default: str) -> str:
    text = os.environ.get(name, default)
    if text not in choices:
        refuse_value(name, f"must be one of {', '.join(choices)}, not {text!r}")
    return text


def read_broker_prefix(name: str) -> str:
    """Return the variable's text with a dot at its end, or an empty string if it is not set.

    A model's name may hold dots. With a dot inside the prefix, or with the word that all names begin with as the
    prefix, two different names could become the same.
    """
    text = os.environ.get(name, "")
    if not text:
        return ""
    if not re.fullmatch(r"(?!inference$)[a-z0-9][a-z0-9_-]{0,49}", text):
        refuse_value(name, f"must be 1 to 50 of a-z, 0-9, _ and -, and another word than inference, not {text!r}")
    return f"{text}."


def read_url(name: str, schemes: tuple[str, ...] = ()) -> str:
    """Return an address, or an empty string if it is not set.

    Its text is not repeated in an error, as it may hold a password.
    """
    address = os.environ.get(name, "")
    try:
        scheme = urlsplit(address).scheme
    except ValueError:
        scheme = ""
    if address and (not scheme or (schemes and scheme not in schemes)):
        known = " or ".join(f"{known}://…" for known in schemes) or "an address such as amqp://…"
        refuse_value(name, f"must be {known}")
    return address


def read_database(name: str, default: str) -> dict[str, Any]:
    """Return the database's entry for Django's DATABASES."""
    try:
        found = dict(dj_database_url.parse(os.environ.get(name) or default, conn_max_age=None))
    except ValueError:
        found = {}
    if found.get("ENGINE") not in ("django.db.backends.postgresql", "django.db.backends.sqlite3"):
        refuse_value(name, "must be an address such as postgres://user:password@host/name, or sqlite:///file")
    return found


def read_release(name: str, folder: Path) -> str:
    """Return the variable's text, or the first 10 characters of the hash of the commit that is checked out.

    Without a checkout it is an empty string.
    """
    if release := os.environ.get(name):
        return release
    git = folder / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        kind, _, ref = head.partition(": ")
        commit = (git / ref).read_text() if kind == "ref" else head
    except OSError:
        return ""
    return commit[:10]


def read_or_make_secret(name: str, file: Path) -> str:
    """Return the variable's text, or a secret that was generated once for this folder.

    No secret is thus the same in two places.
    """
    if given := os.environ.get(name):
        return given
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or not file.stat().st_size:
            _write_whole(file, secrets.token_urlsafe(50))
        return file.read_text()
    except OSError as error:
        refuse_value(
            "DATA_DIR", f"{file.parent} cannot be written: {error.strerror}. Choose another folder, or free it"
        )


def _write_whole(file: Path, text: str) -> None:
    """Write a file that no process ever reads half written, or empty after a full disk.

    If several processes write it at once, the first one wins.
    """
    with tempfile.NamedTemporaryFile("w", dir=file.parent) as new:  # which its owner alone may read
        new.write(text)
        new.flush()
        if file.exists() and not file.stat().st_size:
            file.unlink()
        with contextlib.suppress(FileExistsError):
            os.link(new.name, file)


def refuse_value(name: str, why: str) -> NoReturn:
    raise SystemExit(f"Error: {name} {why}.")
