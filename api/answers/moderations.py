"""The harmful texts among those of a request, in the form that OpenAI's clients read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from api import codec
from api.answers.tei import read_labels
from inference.catalog.specs import FLAG_THRESHOLD, HARMLESS_LABELS
from inference.models import Job

DEFAULT_THRESHOLD = 0.5  # the score from which a label flags a text


def write_moderation(job: Job, options: Mapping[str, Any]) -> bytes:
    """Write the answer of a job that has succeeded: for each text its score by each label that is not harmless.

    `options` are those of the job's model. Raises `ApiError`.
    """
    harmless, threshold = options.get(HARMLESS_LABELS, ()), options.get(FLAG_THRESHOLD, DEFAULT_THRESHOLD)
    results = [_make_result(labels, harmless, threshold) for labels in read_labels(job)]
    return codec.write_json({"id": f"modr-{job.id}", "model": job.model, "results": results})


def _make_result(labels: Iterable[Mapping[str, Any]], harmless: Collection[str], threshold: float) -> dict[str, Any]:
    scores: dict[str, float] = {}
    for each in labels:  # the likeliest first: several may have one name
        if each["label"] not in harmless:
            scores.setdefault(each["label"], each["score"])
    categories = {label: score >= threshold for label, score in scores.items()}
    return {
        "flagged": any(categories.values()),
        "categories": categories,
        "category_scores": scores,
        "category_applied_input_types": {label: ["text"] for label in scores},
    }
