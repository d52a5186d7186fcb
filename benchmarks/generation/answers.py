"""The text of an answer, however a system wraps it."""

from __future__ import annotations

import json


def text_of(body: bytes) -> str:
    """That has come so far, of this service's events or OpenAI's, of whole answers, or of a pipeline's output."""
    if body.startswith((b"[", b"{")):
        return _text(body)
    lines = body.split(b"\n")[:-1]
    return "".join(_text(line[5:]) for line in lines if line.startswith(b"data:") and b"[DONE]" not in line)


def _text(part: bytes) -> str:
    try:
        found = json.loads(part)
    except ValueError:
        return ""
    found = found[0] if found and isinstance(found, list) else found
    if not isinstance(found, dict):
        return ""
    if "token" in found:
        return str(found["token"]["text"])
    texts = [choice.get("text") or "" for choice in found.get("choices", ())]
    return "".join(texts) or str(found.get("generated_text", ""))
