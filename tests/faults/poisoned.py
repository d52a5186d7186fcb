"""A transformers model that dies of some inputs. Apart from the other engines, since it imports transformers."""

from __future__ import annotations

import ctypes
import time
from typing import Any

from inference.engines.pipeline.engine import PipelineEngine
from tests.faults.engines import POISON

CALL_S = 0.2  # a small model is too quick to be killed in the middle


class PoisonedPipeline(PipelineEngine):
    """A text with the word `poison` crashes the process, after its neighbours have been computed."""

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        answers = super().predict(inputs, parameters)
        time.sleep(CALL_S if len(inputs) > 1 else 0.0)
        if any(POISON in str(value) for value in inputs):
            ctypes.string_at(0)
        return answers
