"""What requests may ask of each transformers task when models.toml does not say: its own entries come first.

Bounds keep one request from costing what a thousand do. Numbers are those of the pipelines' own arguments.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.catalog.parameters import ParameterSpec

ALIASES = {
    "sentiment-analysis": "text-classification",
    "ner": "token-classification",
    "text-to-speech": "text-to-audio",
}
SERVED = (  # what `inference.engines.pipeline.feeds` feeds, told without transformers
    "text-classification", "feature-extraction", "fill-mask", "token-classification", "zero-shot-classification",
    "text-generation", "image-classification", "audio-classification", "automatic-speech-recognition",
    "image-feature-extraction", "image-segmentation", "object-detection", "depth-estimation", "mask-generation",
    "zero-shot-image-classification", "zero-shot-audio-classification", "zero-shot-object-detection",
    "document-question-answering", "image-text-to-text", "table-question-answering", "text-to-audio", *ALIASES,
)  # fmt: skip

_LABELS = ParameterSpec(type="array", items="string", min_items=1, max_items=100, max_length=1000, required=True)
_HYPOTHESIS = ParameterSpec(type="string", max_length=1000)
_SCORING = ParameterSpec(type="string", choices=("sigmoid", "softmax", "none"))
_FLAG = ParameterSpec(type="boolean")


def _top_k(limit: int, default: int | None = None) -> ParameterSpec:
    return ParameterSpec(type="integer", min=1, max=limit, default=default)


_CLASSIFICATION = {"top_k": _top_k(1000, 5), "function_to_apply": _SCORING}

_BY_TASK: Mapping[str, Mapping[str, ParameterSpec]] = {
    "text-classification": _CLASSIFICATION,
    "image-classification": _CLASSIFICATION,
    "audio-classification": _CLASSIFICATION,
    "fill-mask": {
        "top_k": _top_k(100),
        "targets": ParameterSpec(type="array", items="string", min_items=1, max_items=100),
    },
    "token-classification": {
        "aggregation_strategy": ParameterSpec(
            type="string", choices=("none", "simple", "first", "average", "max"), default="simple"
        ),
        "ignore_labels": ParameterSpec(type="array", items="string", max_items=100),
    },
    "zero-shot-classification": {
        "candidate_labels": _LABELS,
        "hypothesis_template": _HYPOTHESIS,
        "multi_label": _FLAG,
    },
    "zero-shot-image-classification": {"candidate_labels": _LABELS, "hypothesis_template": _HYPOTHESIS},
    "zero-shot-audio-classification": {"candidate_labels": _LABELS, "hypothesis_template": _HYPOTHESIS},
    "object-detection": {"threshold": ParameterSpec(type="number", min=0, max=1)},
    "text-generation": {
        "max_new_tokens": ParameterSpec(type="integer", min=1, max=1024),
        "do_sample": _FLAG,
        "temperature": ParameterSpec(type="number", min=0.01, max=100),
        "top_k": _top_k(1000),
        "top_p": ParameterSpec(type="number", min=0.01, max=1),
        "typical_p": ParameterSpec(type="number", min=0.01, max=1),
        "repetition_penalty": ParameterSpec(type="number", min=0.1, max=10),
        "return_full_text": _FLAG,
    },
    "automatic-speech-recognition": {"return_timestamps": _FLAG},
}


def for_task(task: str, own: Mapping[str, ParameterSpec]) -> dict[str, ParameterSpec]:
    """The task's parameters, with the model's `own` over them."""
    return {**_BY_TASK.get(ALIASES.get(task, task), {}), **own}
