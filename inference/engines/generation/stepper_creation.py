"""The making of a model's stepper, which is used only if its answers are the same as those of `generate`.

The modules that it needs are imported when it is made. If one of them needs something of transformers that another
release lacks, the model has no stepper.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from inference.catalog.specs import ModelSpec
from inference.engines.inputs.feeds import Feed
from inference.engines.inputs.steps import PipelineCalls
from inference.engines.runtime.faults import describe_exception, is_device_failure
from inference.engines.runtime.parity import Trial
from inference.engines.stepper import Stepper

if TYPE_CHECKING:
    from transformers import Pipeline

logger = logging.getLogger(__name__)


def make_stepper(
    spec: ModelSpec, pipe: Pipeline, feed: Feed, steps: PipelineCalls, trial: Trial
) -> tuple[Stepper | None, str]:
    """Return a stepper whose answers are right, and an empty string; or None, and why there is no stepper."""
    try:
        from inference.engines.generation import trial as tried
        from inference.engines.generation.pipeline_stepper import PipelineStepper
        from inference.engines.generation.rows.requests import Requests

        requests = Requests(pipe, feed, steps)
        problem = tried.find_problem(spec, requests, trial)
        return (None, problem) if problem else (PipelineStepper(spec.max_batch_tokens, requests), "")
    except Exception as error:
        if is_device_failure(error):
            raise
        logger.warning("model=%s is not stepped: %s", spec.name, describe_exception(error), exc_info=True)
        return None, "generating by the step raises an exception, which the worker's log has"
