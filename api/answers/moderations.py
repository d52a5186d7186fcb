"""The harmful texts among those of a request, in the form that OpenAI's clients read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from api import codec
from api.answers.tei import read_labels
from api.requests.dialects.moderations import ModerationRequest
from inference.models import Job


def write_moderation(job: Job, request: ModerationRequest) -> bytes:
    """Write the answer of a job that has succeeded: for each text its score by each label that is not harmless.

    Raises `ApiError`.
    """
    results = [_make_result(labels, request) for labels in read_labels(job)]
    return codec.write_json({"id": f"modr-{job.id}", "model": job.model, "results": results})


def _make_result(labels: Iterable[Mapping[str, Any]], request: ModerationRequest) -> dict[str, Any]:
    scores = {each["label"]: each["score"] for each in labels if each["label"] not in request.harmless_labels}
    categories = {label: score >= request.threshold for label, score in scores.items()}
    return {
        "flagged": any(categories.values()),
        "categories": categories,
        "category_scores": scores,
        "category_applied_input_types": {label: ["text"] for label in scores},
    }
