"""Whose fault it is that a step of a pipeline raises: before the model the input's, behind it the model's."""

from collections.abc import Callable
from typing import Any

from transformers.pipelines import PipelineException
from transformers.utils.chat_template_utils import jinja2

from inference.engines.faults import describe
from inference.errors import UNREADABLE, EngineError, InvalidInput
from inference.telemetry.raised import places

_WRONG_INPUT = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, PipelineException,
    jinja2.TemplateError,  # a chat that the model's template refuses
)  # fmt: skip


def read(step: Callable[..., Any], *arguments: Any) -> Any:
    """What a step before the model returns: what it raises is the fault of the input, an `InvalidInput`."""
    try:
        return step(*arguments)
    except _WRONG_INPUT as error:
        raise InvalidInput(UNREADABLE, raised=describe(error), trace=places(error)) from None


def of_the_model(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step, with what it raises told apart from what reading the input raises."""

    def run(*arguments: Any, **named: Any) -> Any:
        try:
            return step(*arguments, **named)
        except _WRONG_INPUT as error:
            raise EngineError(describe(error), trace=places(error)) from None

    return run
