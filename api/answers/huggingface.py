"""The shape of answer that Hugging Face's clients expect for each task.

It was taken from the traffic of huggingface_hub 2.4 and @huggingface/inference 4.13. What these share with older
versions is kept.
"""

from __future__ import annotations

import re
from typing import Any

from inference.catalog import tasks
from inference.catalog.tasks import AnswerShape

_LEGACY_CLIENT = re.compile(r"hf_hub/(0|1\.[01])\.")  # these read {"labels", "scores"} of zero-shot themselves


def shape_output(task: str, output: object, *, size: int, user_agent: str = "") -> Any:
    """Return the output of a job of `size` items in the shape that the clients expect.

    Each of several items is shaped alike.
    """
    wanted = tasks.find_task(task).shape
    if wanted is AnswerShape.LISTS:
        return _nest_labels(output, size)
    if wanted is AnswerShape.SEGMENTS:
        return _add_missing_scores(output)
    if wanted is AnswerShape.PAIRS and not _LEGACY_CLIENT.search(user_agent):
        return _pair_labels_with_scores(output)
    return output


def _nest_labels(output: Any, size: int) -> Any:
    """Return a list of `{"label", "score"}` for every text, in a list also for one text."""
    if size == 1 and not (isinstance(output, list) and output and isinstance(output[0], list)):
        output = [output]
    return [item if isinstance(item, list) else [item] for item in output]


def _add_missing_scores(output: object) -> Any:
    """Return segments with a score of 1 where the model gives none, as Hugging Face's own service does."""
    if isinstance(output, list):
        return [_add_missing_scores(item) for item in output]
    if isinstance(output, dict) and output.get("score", 1.0) is None:
        return {**output, "score": 1.0}
    return output


def _pair_labels_with_scores(output: object) -> Any:
    """Turn `{"labels", "scores"}` into `[{"label", "score"}]`."""
    if isinstance(output, list):
        return [_pair_labels_with_scores(item) for item in output]
    if not isinstance(output, dict) or not output.keys() >= {"labels", "scores"}:
        return output
    return [{"label": label, "score": score} for label, score in zip(output["labels"], output["scores"], strict=True)]
