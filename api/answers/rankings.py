"""The order in which texts answer a query, in the form that the clients of other servers read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from api import codec
from api.errors.problems import ApiError
from api.requests.dialects.rerank import RankingForm
from inference.models import Job

NO_SCORE = 'The model\'s answer is not {"label": "…", "score": …} for each text.'


def write_ranking(job: Job, form: RankingForm) -> bytes:
    """Write the answer of a job that has succeeded, with the best text first.

    It is a list if the request named its texts `texts`, and an object otherwise. Raises `ApiError`.
    """
    if not isinstance(job.output, list) or len(job.output) != len(form.texts):
        raise ApiError(NO_SCORE, "bad_output")
    scores = [_read_score(output, is_raw=form.is_raw) for output in job.output]
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: form.top_n]
    entries = [_make_entry(form, index, scores[index]) for index in order]
    if form.names_texts:
        return codec.write_json(entries)
    ranked = {"id": str(job.id), "object": "rerank", "model": job.model, "results": entries}
    return codec.write_json({**ranked, **_make_usage_field(job.output)})


def _make_entry(form: RankingForm, index: int, score: float) -> dict[str, Any]:
    text = form.texts[index]
    if form.names_texts:
        return {"index": index, "score": score, **({"text": text} if form.returns_texts else {})}
    document = {"document": {"text": text}} if form.returns_texts else {}
    return {"index": index, "relevance_score": score, **document}


def _make_usage_field(outputs: Sequence[Any]) -> dict[str, Any]:
    """Return the field of the tokens that were read, or no field if the engine, a custom one, does not count them."""
    counts = [output.get("tokens") for output in outputs]
    if any(type(count) is not int for count in counts):
        return {}
    return {"usage": {"prompt_tokens": sum(counts), "total_tokens": sum(counts)}}


def _read_score(output: object, *, is_raw: bool) -> float:
    """Return the logit, or its sigmoid. Raises `ApiError` if the output holds no score."""
    match output:
        case {"score": float() | int() as logit} if not isinstance(logit, bool):
            return float(logit) if is_raw else _compute_sigmoid(logit)
    raise ApiError(NO_SCORE, "bad_output")


def _compute_sigmoid(logit: float) -> float:
    """Return 1 / (1 + e^-logit), computed in the form that overflows for no number."""
    if logit >= 0:
        return 1 / (1 + math.exp(-logit))
    return math.exp(logit) / (1 + math.exp(logit))
