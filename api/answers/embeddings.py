"""Vectors of texts in the forms that the clients of OpenAI, Text Embeddings Inference and Cohere read.

The outputs of jobs hold vectors in base64. They are decoded one by one, and written to one buffer: all of a large list
as Python's numbers would take eight times their size, and each copy of an answer may have 80 MB.
"""

from __future__ import annotations

import base64
import io
import math
import operator
import struct
from collections.abc import Iterable, Sequence

from api import codec
from api.errors.problems import ApiError
from api.requests.dialects.cohere_embeddings import EmbedRequest
from inference.models import Job

NO_VECTOR = 'The model\'s answer is not {"embedding": "…", "tokens": …} for each text.'


def write_openai_embeddings(job: Job, *, is_base64: bool) -> bytes:
    """Write the answer of a job that has succeeded as OpenAI does. Raises `ApiError`."""
    found = read_base64_vectors(job)
    data = (
        codec.write_json(
            {"object": "embedding", "index": index, "embedding": vector if is_base64 else decode_vector(vector)}
        )
        for index, (vector, _) in enumerate(found)
    )
    tokens = sum(count for _, count in found)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    written = io.BytesIO()
    written.write(b'{"object":"list","data":')
    write_json_items(written, data)
    written.write(b',"model":%s,"usage":%s}' % (codec.write_json(job.model), codec.write_json(usage)))
    return written.getvalue()


def write_tei_embeddings(job: Job) -> bytes:
    """Write the answer as Text Embeddings Inference does: a list of lists. Raises `ApiError`."""
    written = io.BytesIO()
    _write_vectors(written, read_base64_vectors(job))
    return written.getvalue()


def write_token_embeddings(job: Job) -> bytes:
    """Write for each text a list of its tokens' vectors, as Text Embeddings Inference does. Raises `ApiError`."""
    written = io.BytesIO()
    texts = (_split_into_vectors(decode_vector(found), count) for found, count in read_base64_vectors(job))
    write_json_items(written, map(codec.write_json, texts))
    return written.getvalue()


def _split_into_vectors(found: Sequence[float], count: int) -> list[Sequence[float]]:
    """Divide numbers into `count` vectors. Raises `ApiError`."""
    width, rest = divmod(len(found), count or 1)
    if rest or not width:
        raise ApiError(NO_VECTOR, "bad_output")
    return [found[start : start + width] for start in range(0, len(found), width)]


def write_cohere_embeddings(job: Job, request: EmbedRequest, *, version: int) -> bytes:
    """Write the answer as Cohere does. Version 1 of its API has plain lists where no form is asked for.

    Raises `ApiError`.
    """
    found = read_base64_vectors(job)
    is_plain = version == 1 and not request.forms
    answer = {
        "id": str(job.id),
        "response_type": "embeddings_floats" if is_plain else "embeddings_by_type",
        "texts": request.texts,
        "meta": {
            "api_version": {"version": str(version)},
            "billed_units": {"input_tokens": sum(count for _, count in found)},
        },
    }
    written = io.BytesIO()
    written.write(codec.write_json(answer)[:-1] + b',"embeddings":')
    if is_plain:
        _write_vectors(written, found)
    else:
        for index, form in enumerate(request.forms or ("float",)):
            written.write(b'%s"%s":' % (b"," if index else b"{", form.encode()))
            _write_vectors(written, found, is_base64=form == "base64")
        written.write(b"}")
    written.write(b"}")
    return written.getvalue()


def write_similarities(job: Job) -> bytes:
    """Write the cosine of the first text's vector with each of the others, all of length one. Raises `ApiError`."""
    first, *others = read_base64_vectors(job)
    source = decode_vector(first[0])
    return codec.write_json([_compute_cosine(source, decode_vector(vector)) for vector, _ in others])


def _compute_cosine(source: Sequence[float], other: Sequence[float]) -> float:
    """Return the product of two vectors of length one, cut to -1 to 1 because of rounding.

    Raises `ApiError` if the vectors differ in length.
    """
    if len(other) != len(source):
        raise ApiError(NO_VECTOR, "bad_output")
    product: float = sum(map(operator.mul, source, other))
    return max(-1.0, min(product, 1.0))


def _write_vectors(written: io.BytesIO, found: Iterable[tuple[str, int]], *, is_base64: bool = False) -> None:
    vectors = (vector if is_base64 else decode_vector(vector) for vector, _ in found)
    write_json_items(written, map(codec.write_json, vectors))


def write_json_items(written: io.BytesIO, parts: Iterable[bytes]) -> None:
    """Write a JSON list of items that are JSON already."""
    written.write(b"[")
    for index, part in enumerate(parts):
        written.write(b"," * bool(index))
        written.write(part)
    written.write(b"]")


def read_base64_vectors(job: Job) -> list[tuple[str, int]]:
    """Return the vector of each text in base64, and how many tokens were read. Raises `ApiError`."""
    outputs = job.output if isinstance(job.output, list) else [job.output]
    if len(outputs) != job.size:
        raise ApiError(NO_VECTOR, "bad_output")
    return list(map(_read_vector, outputs))


def _read_vector(output: object) -> tuple[str, int]:
    match output:
        case {"embedding": str(vector), "tokens": int(count)} if count >= 0 and type(count) is int:
            return vector, count
    raise ApiError(NO_VECTOR, "bad_output")


def decode_vector(vector: str) -> tuple[float, ...]:
    """Decode float32 numbers in base64, lowest byte first. Raises `ApiError` for anything else."""
    try:
        numbers = base64.b64decode(vector, validate=True)
        found = struct.unpack(f"<{len(numbers) // 4}f", numbers)
    except (ValueError, struct.error):
        raise ApiError(NO_VECTOR, "bad_output") from None
    if not all(map(math.isfinite, found)):
        raise ApiError(NO_VECTOR, "bad_output")
    return found
