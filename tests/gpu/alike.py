"""How far two answers are from each other. Those of a GPU, and of short numbers, are never equal to the last digit."""

import base64
import io
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

PNG = "iVBOR"  # how one begins in base64


def apart(found: Any, expected: Any, *, texts_part: int = 1) -> float:
    """The largest difference of two numbers, beyond 1 as a part of the expected one; infinity where anything else is
    different. Scores are compared by their labels: two that are nearly the same may change places. Whole numbers, as of
    a box, may be one off. Of a mask counts how many of its pixels changed, of a text its first part of so many."""
    if (left := _scores(found)) is not None and (right := _scores(expected)) is not None:
        return apart(left, right) if left.keys() == right.keys() else math.inf
    if isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        return max((apart(found[key], expected[key], texts_part=texts_part) for key in found), default=0.0)
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        return max((apart(*pair, texts_part=texts_part) for pair in zip(found, expected, strict=True)), default=0.0)
    return _leaf(found, expected, texts_part)


def _scores(answer: Any) -> Mapping[str, float] | None:
    """By label, where an answer is that."""
    if isinstance(answer, dict) and {"labels", "scores"} <= answer.keys():
        return dict(zip(answer["labels"], answer["scores"], strict=True))
    if not isinstance(answer, list) or not all(isinstance(part, dict) and "score" in part for part in answer):
        return None
    labels = [str(part.get("token", part.get("label"))) for part in answer]
    is_placed = any(part.keys() & {"box", "mask", "index"} for part in answer)
    if is_placed or not labels or len(set(labels)) < len(labels):
        return None
    return {label: part["score"] for label, part in zip(labels, answer, strict=True)}


def _leaf(found: Any, expected: Any, texts_part: int) -> float:
    if isinstance(found, float) and isinstance(expected, float):
        return abs(found - expected) / max(1.0, abs(expected))
    if type(found) is int and type(expected) is int:
        return 0.0 if abs(found - expected) <= 1 else math.inf
    if isinstance(found, str) and isinstance(expected, str):
        if expected.startswith(PNG) and found.startswith(PNG):
            return _changed(found, expected)
        read = -(-len(expected) // texts_part)
        return 0.0 if found[:read] == expected[:read] else math.inf
    return 0.0 if found == expected else math.inf


def _changed(found: str, expected: str) -> float:
    """Of the pixels, as a part of all."""
    left, right = _pixels(found), _pixels(expected)
    return float((left != right).mean()) if left.shape == right.shape else math.inf


def _pixels(png: str) -> Any:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(base64.b64decode(png))))
