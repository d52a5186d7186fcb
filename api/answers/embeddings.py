"""Vectors of texts, as the clients of OpenAI read them."""

from __future__ import annotations

import base64
import sys
from array import array
from typing import Any

from api.errors import ApiError
from inference.models import Job

NO_VECTOR = 'The model\'s answer is not {"embedding": "…", "tokens": …}.'


def embeddings(job: Job, *, is_base64: bool) -> dict[str, Any]:
    """Make the answer of a job that has succeeded. Raises `ApiError`."""
    outputs = job.output if isinstance(job.output, list) else [job.output]
    vectors, tokens = [], 0
    for output in outputs:
        match output:
            case {"embedding": str(vector), "tokens": int(count)}:
                vectors.append(vector if is_base64 else _numbers(vector))
                tokens += count
            case _:
                raise ApiError(NO_VECTOR, "bad_output")
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)],
        "model": job.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _numbers(encoded: str) -> list[float]:
    """Decode numbers of float32, lowest byte first."""
    numbers = array("f", base64.b64decode(encoded))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
