"""Writes vectors of texts as the clients of OpenAI read them."""

from __future__ import annotations

import base64
import io
import math
import struct
from typing import Any

from api import codec
from api.errors import ApiError
from inference.models import Job

NO_VECTOR = 'The model\'s answer is not {"embedding": "…", "tokens": …} for each text.'


def embeddings(job: Job, *, is_base64: bool) -> bytes:
    """Write the answer of a job that has succeeded, as JSON. Raises `ApiError`.

    Vectors are decoded one by one: all of a large list as Python's numbers would take eight times their size.
    """
    outputs = job.output if isinstance(job.output, list) else [job.output]
    if len(outputs) != job.size:
        raise ApiError(NO_VECTOR, "bad_output")
    written, tokens = io.BytesIO(), 0
    written.write(b'{"object":"list","data":[')
    for index, output in enumerate(outputs):
        vector, count = _parts(output)
        numbers = _numbers(vector)
        told = {"object": "embedding", "index": index, "embedding": vector if is_base64 else numbers}
        written.write(b"," * bool(index) + codec.dumps(told))
        tokens += count
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    written.write(b'],"model":' + codec.dumps(job.model) + b',"usage":' + codec.dumps(usage) + b"}")
    return written.getvalue()


def _parts(output: Any) -> tuple[str, int]:
    match output:
        case {"embedding": str(vector), "tokens": int(count)} if count >= 0 and type(count) is int:
            return vector, count
    raise ApiError(NO_VECTOR, "bad_output")


def _numbers(vector: str) -> tuple[float, ...]:
    """Decode numbers of float32, lowest byte first. Raises `ApiError` for what is none."""
    try:
        numbers = base64.b64decode(vector, validate=True)
        found = struct.unpack(f"<{len(numbers) // 4}f", numbers)
    except (ValueError, struct.error):
        raise ApiError(NO_VECTOR, "bad_output") from None
    if not all(map(math.isfinite, found)):
        raise ApiError(NO_VECTOR, "bad_output")
    return found
