"""The description of a model in the form that the clients of Text Embeddings Inference read."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from inference.catalog.specs import ModelSpec
from inference.status import workers
from inference.submission import split_jobs

MODEL_TYPES = {  # by kind of request
    "embed": "embedding", "predict": "classifier", "rerank": "reranker", "moderate": "classifier",
}  # fmt: skip
POOLING = {"lasttoken": "last_token"}  # TEI's names, where they are others


def _describe_weights(spec: ModelSpec) -> dict[str, Any]:
    facts = dict(workers.read_model_facts().get(spec.name, {}))
    if "pooling" in facts:
        facts["pooling"] = POOLING.get(facts["pooling"], facts["pooling"])
    if labels := facts.get("id2label"):
        facts["label2id"] = {name: int(key) for key, name in labels.items()}
    return facts


def make_model_info(spec: ModelSpec) -> dict[str, Any]:
    """Return the description of a model from the catalog, and from a worker that serves it.

    Values that neither knows are left out or null.
    """
    return {
        "model_id": spec.model,
        "model_sha": spec.revision or None,
        "model_dtype": None if spec.weights_dtype == "auto" else spec.weights_dtype,
        "model_type": {MODEL_TYPES[kind]: _describe_weights(spec) for kind in spec.request_kinds},
        "max_concurrent_requests": settings.MAX_WAITING_REQUESTS,
        "max_input_length": spec.max_length or None,
        "max_batch_tokens": spec.max_batch_tokens,
        "max_batch_requests": spec.max_batch_size,
        "max_client_batch_size": split_jobs.compute_max_queued_inputs(spec),
        "auto_truncate": True,
        "tokenization_workers": None,
        "version": None,
        "sha": None,
        "docker_label": None,
    }
