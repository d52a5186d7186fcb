"""Labels, and the description of a model, in the form that the clients of Text Embeddings Inference read."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from api import codec
from api.errors.problems import ApiError
from inference.catalog.specs import ModelSpec
from inference.models import Job
from inference.submission import split_jobs

NO_LABELS = 'The model\'s answer is not a list of {"label": "…", "score": …} for each text.'
MODEL_TYPES = {  # by kind of request
    "embed": "embedding", "predict": "classifier", "rerank": "reranker", "moderate": "classifier",
}  # fmt: skip


def write_predictions(job: Job, *, is_batch: bool) -> bytes:
    """Write the labels of each text, the best first. The labels of one text alone are not in an outer list.

    Raises `ApiError`.
    """
    found = read_labels(job)
    return codec.write_json(found if is_batch else found[0])


def read_labels(job: Job) -> list[list[dict[str, Any]]]:
    """Return the labels of each text, the best first. Raises `ApiError`."""
    outputs = job.output if isinstance(job.output, list) else [job.output]
    if len(outputs) != job.size:
        raise ApiError(NO_LABELS, "bad_output")
    return [[_read_label(each) for each in (output if isinstance(output, list) else [output])] for output in outputs]


def _read_label(given: object) -> dict[str, Any]:
    match given:
        case {"label": str(label), "score": float(score)}:
            return {"score": score, "label": label}
    raise ApiError(NO_LABELS, "bad_output")


def make_model_info(spec: ModelSpec) -> dict[str, Any]:
    """Return the description of a model from the catalog. Values that only its weights hold are left out or null."""
    return {
        "model_id": spec.model,
        "model_sha": spec.revision or None,
        "model_dtype": None if spec.weights_dtype == "auto" else spec.weights_dtype,
        "model_type": {MODEL_TYPES[kind]: {} for kind in spec.request_kinds},
        "max_concurrent_requests": settings.MAX_WAITING_REQUESTS,
        "max_input_length": spec.max_length or None,
        "max_batch_tokens": spec.max_batch_tokens,
        "max_batch_requests": spec.max_batch_size,
        "max_client_batch_size": split_jobs.compute_max_inputs(spec),
        "auto_truncate": True,
        "tokenization_workers": None,
        "version": None,
        "sha": None,
        "docker_label": None,
    }
