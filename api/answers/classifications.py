"""Labels of texts with their scores, in the forms that the clients of TEI and of OpenAI's moderations read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from api import codec
from api.errors.problems import ApiError
from inference.catalog.specs import FLAG_THRESHOLD, HARMLESS_LABELS
from inference.models import Job

NO_LABELS = 'The model\'s answer is not a list of {"label": "…", "score": …} for each text.'
DEFAULT_THRESHOLD = 0.5  # the score from which a label flags a text


def write_tei_predictions(job: Job, *, is_batch: bool) -> bytes:
    """Write the labels of each text. Those of one text alone are not in an outer list. Raises `ApiError`."""
    found = read_label_scores(job)
    return codec.write_json(found if is_batch else found[0])


def write_moderation(job: Job, options: Mapping[str, Any]) -> bytes:
    """Write the answer of a job that has succeeded: for each text its score by each label that is not harmless.

    `options` are those of the job's model. Raises `ApiError`.
    """
    harmless, threshold = options[HARMLESS_LABELS], options.get(FLAG_THRESHOLD, DEFAULT_THRESHOLD)
    results = [_make_result(labels, harmless, threshold) for labels in read_label_scores(job)]
    return codec.write_json({"id": f"modr-{job.id}", "model": job.model, "results": results})


def read_label_scores(job: Job) -> list[list[dict[str, Any]]]:
    """Return the labels of each text with their scores, the highest first.

    Raises `ApiError` if the job's output is something else.
    """
    outputs = job.output if isinstance(job.output, list) else [job.output]
    if len(outputs) != job.size:
        raise ApiError(NO_LABELS, "bad_output")
    several = (output if isinstance(output, list) else [output] for output in outputs)
    return [sorted(map(_read_label, labels), key=lambda each: -each["score"]) for labels in several]


def _read_label(given: object) -> dict[str, Any]:
    match given:
        case {"label": str(label), "score": float(score) | int(score)} if not isinstance(score, bool):
            return {"score": float(score), "label": label}
    raise ApiError(NO_LABELS, "bad_output")


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
