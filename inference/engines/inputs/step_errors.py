"""The blame for an exception in a step of a pipeline: before the model it is the input's, behind it the model's."""

import traceback
from collections.abc import Callable
from typing import Any

from transformers.pipelines import PipelineException
from transformers.utils.chat_template_utils import jinja2

from inference.engines.runtime.exception_diagnosis import clean_message, describe_exception
from inference.errors import UNREADABLE, EngineError, InvalidInput
from inference.telemetry.exception_descriptions import format_places

_WRONG_INPUT = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, PipelineException,
    jinja2.TemplateError,  # a chat that the model's template refuses
)  # fmt: skip
_TEMPLATES = "transformers.utils.chat_template_utils"


def run_input_step(step: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a step that runs before the model.

    What it raises is the fault of the input, and becomes `InvalidInput`.
    """
    try:
        return step(*arguments)
    except _WRONG_INPUT as error:
        if _is_about_input(error):
            raise InvalidInput(f"{UNREADABLE} {clean_message(error)}") from None
        raise InvalidInput(UNREADABLE, raised=describe_exception(error), trace=format_places(error)) from None


def _is_about_input(error: Exception) -> bool:
    """Return True if the message is for the client: the chat template's, the tokenizer's or the pipeline's own."""
    if isinstance(error, jinja2.TemplateError | PipelineException):
        return True
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    module = str(frame.f_globals.get("__name__"))
    is_theirs = module == _TEMPLATES or (module.startswith("transformers.") and "tokenization" in module)
    return is_theirs and isinstance(error, ValueError | TypeError)


def wrap_model_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return the step, changed so that what it raises is an `EngineError`, not the error of a wrong input."""

    def run(*arguments: Any, **named: Any) -> Any:
        try:
            return step(*arguments, **named)
        except _WRONG_INPUT as error:
            raise EngineError(describe_exception(error), trace=format_places(error)) from None

    return run
