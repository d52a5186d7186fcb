"""Vectors and rankings of texts, by models that embed or rank them: see embeddings.md and rerank.md in docs/guide."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from batch_inference_client.errors import ClientError

IN_BASE64 = {"encoding_format": "base64"}  # a quarter of the size of the numbers as text
OTHER_OUTPUTS = ("pooling", "details")
LOGITS = {"function_to_apply": "none"}  # shares batches with the service's own rankings


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One text of a ranking: its place among those that were given, and its score from 0 to 1."""

    index: int
    score: float


class Runs(Protocol):
    """An object that runs one job and returns its output, as the client does. `arun` is for asyncio."""

    def run(self, model: str, inputs: object, **options: Any) -> Any: ...

    async def arun(self, model: str, inputs: object, **options: Any) -> Any: ...


class Retrieval:
    """The methods of the client for embeddings and rankings.

    Each takes the options of `run`, but a ranking takes no `parameters`, and raises the same errors as `run`.
    """

    def embed(
        self: Runs,
        model: str,
        texts: str | Sequence[str],
        *,
        parameters: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Return the vector of a text as a list of numbers, or a list of such vectors for a list of texts.

        `parameters` may be `input_type`, `prompt_name`, `dimensions`, `normalize` and `truncate`.
        """
        given = _convert_texts(texts)
        return _decode_vectors(given, self.run(model, given, parameters=_add_encoding(parameters or {}), **options))

    async def aembed(
        self: Runs,
        model: str,
        texts: str | Sequence[str],
        *,
        parameters: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Do as `embed` does, for asyncio."""
        given = _convert_texts(texts)
        return _decode_vectors(
            given, await self.arun(model, given, parameters=_add_encoding(parameters or {}), **options)
        )

    def rerank(
        self: Runs, model: str, query: str, texts: Sequence[str], *, top_n: int | None = None, **options: Any
    ) -> list[Ranked]:
        """Return the texts ranked by how well they answer a query, the best first.

        They are all texts, or the best `top_n` of them, which is 1 or more. Each has its place in `texts` as `index`.
        """
        pairs = _make_pairs(query, texts, top_n)
        return _rank_texts(self.run(model, pairs, parameters=LOGITS, **options), top_n)

    async def arerank(
        self: Runs, model: str, query: str, texts: Sequence[str], *, top_n: int | None = None, **options: Any
    ) -> list[Ranked]:
        """Do as `rerank` does, for asyncio."""
        pairs = _make_pairs(query, texts, top_n)
        return _rank_texts(await self.arun(model, pairs, parameters=LOGITS, **options), top_n)


def _convert_texts(given: str | Sequence[str]) -> str | list[str]:
    return given if isinstance(given, str) else list(given)


def _add_encoding(parameters: Mapping[str, Any]) -> dict[str, Any]:
    if other := next((name for name in OTHER_OUTPUTS if name in parameters), ""):
        raise ClientError(f"parameters.{other}: its output is more than a vector a text: use run.", code="bad_request")
    return {**parameters, **IN_BASE64}


def _decode_vectors(texts: str | list[str], output: Any) -> Any:
    return _decode_numbers(output) if isinstance(texts, str) else list(map(_decode_numbers, output))


def _decode_numbers(vector: str) -> list[float]:
    """Decode numbers of float32, the lowest byte first."""
    written = base64.b64decode(vector)
    return list(struct.unpack(f"<{len(written) // 4}f", written))


def _make_pairs(query: str, texts: Sequence[str], top_n: int | None) -> list[dict[str, str]]:
    if isinstance(texts, str):
        raise ClientError("texts: must be several texts, not one.", code="bad_request")
    if top_n is not None and (type(top_n) is not int or top_n < 1):
        raise ClientError("top_n: must be a whole number from 1.", code="bad_request")
    return [{"text": query, "text_pair": text} for text in texts]


def _rank_texts(output: list[Any], top_n: int | None) -> list[Ranked]:
    if not all(isinstance(answer, dict) for answer in output):
        raise ClientError("model: must be one that ranks, with one score for each pair of texts.", code="bad_request")
    found = [Ranked(index=index, score=_compute_sigmoid(answer["score"])) for index, answer in enumerate(output)]
    return sorted(found, key=lambda each: -each.score)[:top_n]


def _compute_sigmoid(logit: float) -> float:
    """Compute 1 / (1 + e^-logit), in the form that overflows for no number."""
    small = math.exp(-abs(logit))
    return (1 if logit >= 0 else small) / (1 + small)
