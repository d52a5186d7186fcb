"""Tells what became of each call of a client, a line of JSON each. It runs in an environment of that client."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from typing import Any

BASE, KEY, DECODER = sys.argv[1:4]  # the last is the folder of the model that generates, for its tokenizer
QUERY, TEXTS = "what sleeps", ["a cat sleeps", "stocks fell", ""]
PATIENCE_S = 180.0


def call(client: str, name: str, request: Callable[[], Any], check: Callable[[Any], Any] = bool) -> None:
    """Call a client. `check` says of its answer whether it is right. One that never comes is told as such."""
    found: list[dict[str, Any]] = []

    def run() -> None:
        try:
            is_right = check(request())
            found.append({"works": bool(is_right), "words": "" if is_right else "the answer is not what it should be"})
        except BaseException as error:
            body = getattr(error, "body", None)
            words = body.get("message") if isinstance(body, dict) else getattr(error, "server_message", None) or error
            message, _, _ = " ".join(str(words).split()).partition(" [type=")  # pydantic shows the input, with our port
            found.append({"works": False, "words": f"{type(error).__name__}: {message}"})

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    outcome = found[0] if found else {"works": False, "words": f"no answer within {PATIENCE_S:g} s"}
    sys.stdout.write(json.dumps({"client": client, "call": name, **outcome}) + "\n")
    sys.stdout.flush()


def are_vectors(vectors: Any, count: int = len(TEXTS)) -> bool:
    """Return whether these are vectors of MiniLM's length."""
    return len(vectors) == count and all(len(vector) == 384 for vector in vectors)
