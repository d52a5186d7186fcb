"""Images and sounds that are base64 in a job's inputs or output.

They are recognized by their first bytes, and served only as the type that these show. What a browser could run, such as
SVG, is not recognized.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any

from django.http import HttpResponse

MOST_BYTES = 16 * 1024 * 1024
MOST_PIXELS = 50_000_000  # the limit of models' inputs, too
HEAD = 64  # characters of base64 by which a kind is recognized
SHORTEST = 44
POLICY = "default-src 'none'; sandbox"

KINDS = (  # first bytes, bytes at offset 8, content type
    (b"\x89PNG\r\n\x1a\n", b"", "image/png"), (b"\xff\xd8\xff", b"", "image/jpeg"), (b"GIF8", b"", "image/gif"),
    (b"RIFF", b"WEBP", "image/webp"), (b"RIFF", b"WAVE", "audio/wav"), (b"fLaC", b"", "audio/flac"),
    (b"OggS", b"", "audio/ogg"), (b"ID3", b"", "audio/mpeg"), (b"\xff\xfb", b"", "audio/mpeg"),
    (b"\xff\xf3", b"", "audio/mpeg"),
)  # fmt: skip

Path = Sequence[str | int]


def detect_media_type(value: object) -> str:
    """Return the content type of what this text is in base64; an empty string if it is nothing that is shown."""
    if not isinstance(value, str) or not SHORTEST <= len(value) <= MOST_BYTES * 4 // 3:
        return ""
    try:
        head = base64.b64decode(_extract_base64(value, HEAD), validate=True)
    except (binascii.Error, ValueError):
        return ""
    found = next((name for first, at_8, name in KINDS if head.startswith(first) and head[8:].startswith(at_8)), "")
    return "" if found.startswith("image/") and _count_pixels(head) > MOST_PIXELS else found


def _extract_base64(value: str, most: int | None = None) -> str:
    start = value.find(",", 0, 100) + 1 if value.startswith("data:") else 0
    return value[start : None if most is None else start + most]


def _count_pixels(head: bytes) -> int:
    """Return the pixels by the header of PNG and GIF; other formats are bounded by what browsers decode."""
    if head.startswith(b"\x89PNG"):
        return int.from_bytes(head[16:20], "big") * int.from_bytes(head[20:24], "big")
    if head.startswith(b"GIF8"):
        return int.from_bytes(head[6:8], "little") * int.from_bytes(head[8:10], "little")
    return 0


def encode_value_path(side: str, path: Path) -> str:
    """Return the parameter `at` of the address of a job's media, for the value at this path."""
    return json.dumps([side, *path])


def look_up_value(values: dict[str, Any], address: str) -> Any:
    """Return the value at an address.

    Raises `LookupError` if there is none.
    """
    try:
        path = json.loads(address)
    except (ValueError, RecursionError) as error:
        raise LookupError(address) from error
    if not isinstance(path, list) or not 1 <= len(path) <= 8:
        raise LookupError(address)
    found: Any = values
    for step in path:
        is_place = type(step) is int and step >= 0 and isinstance(found, list)
        if not is_place and not (isinstance(step, str) and isinstance(found, dict)):
            raise LookupError(address)
        found = found[step]
    return found


def make_media_response(value: Any) -> HttpResponse | None:
    """Return the bytes under a policy that lets them do nothing, or None if they are not what is shown."""
    content_type = detect_media_type(value)
    try:
        content = base64.b64decode(_extract_base64(value), validate=True) if content_type else b""
    except (binascii.Error, ValueError):
        content = b""
    if not content:
        return None
    headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
    return HttpResponse(content, content_type=content_type, headers=headers)
