"""The making and loading of an engine from a model's entry in the catalog.

Any failure is a `ModelUnavailable` whose message names the cure.
"""

import difflib
import importlib
import logging
from collections.abc import Callable
from typing import Any

from inference.catalog import tasks
from inference.catalog.specs import ModelSpec
from inference.engines.artifacts import memory
from inference.engines.artifacts.memory import CPU
from inference.engines.base import Engine
from inference.engines.runtime import engine_calls
from inference.engines.runtime.exception_diagnosis import (
    describe_exception,
    is_cuda_initialized,
    is_device_failure,
    is_out_of_memory,
    probe_gpus,
)
from inference.errors import ModelUnavailable
from inference.telemetry import exception_descriptions

logger = logging.getLogger(__name__)

LONG = 512  # tokens of a text
Predict = Callable[[list[Any], dict[str, Any]], list[Any]]


class FunctionEngine(Engine):
    """A plain function `predict(inputs, parameters)`, which loads what it needs when its module is imported."""

    def __init__(self, spec: ModelSpec, function: Predict) -> None:
        super().__init__(spec)
        self.function = function

    def load(self, device: str) -> None:
        """Do nothing: the module is imported already."""

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        return self.function(inputs, parameters)


def make_unloaded_engine(spec: ModelSpec) -> Engine:
    """Import the module that `spec.engine` names, and return its engine, not loaded yet.

    Raises `ModelUnavailable` if the module or its engine is missing or wrong.
    """
    target = _import_engine(spec)
    if isinstance(target, type) and issubclass(target, Engine):
        return target(spec)
    if callable(target) and not isinstance(target, type):
        return FunctionEngine(spec, target)
    raise ModelUnavailable(
        f"engine {spec.engine!r} must be a subclass of inference.engines.base.Engine"
        f" or a function predict(inputs, parameters), not {type(target).__name__}."
    )


def load_engine(spec: ModelSpec, device: str) -> Engine:
    """Return the engine of `spec`, loaded onto `device` ("cpu", "cuda:0") and warmed up.

    Raises `ModelUnavailable` if that fails.
    """
    try:
        engine = make_unloaded_engine(spec)
        engine.load(device)
        engine.warm_up()
        if device == CPU:
            memory.keep_freed_memory()
        else:
            _warm_up_largest_batch(engine)
        if spec.backend != engine.backend and not engine.note:
            engine.note = f'backend = "{spec.backend}" is nothing to {spec.engine}, which computes in its own way.'
    except (ModelUnavailable, SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # not `Exception`, as a panic of Rust is none
        raised = getattr(error, "raised", "") or describe_exception(error)
        raise ModelUnavailable(f"could not be loaded on {device}: {raised}") from error
    return engine


def _warm_up_largest_batch(engine: Engine) -> None:
    """Run the largest batch of a built-in model that reads texts.

    Then the device's libraries are ready for such a batch, or the log reports at once that it does not fit into memory.
    """
    spec = engine.spec
    task = tasks.find_task(spec.task)
    if not spec.is_built_in or engine.stepper or task.takes_files or task.example is None:
        return
    length = min(engine.max_tokens or LONG, LONG, spec.max_batch_tokens)
    size = min(spec.max_batch_size, spec.max_batch_tokens // length)
    report = engine_calls.run_engine_with_isolation(
        engine, [engine.make_input_from_text("a " * length)] * size, dict(task.measured_with)
    )
    if report.oom_shape:
        logger.warning("model=%s %d texts of %d tokens do not fit into memory at once", spec.name, *report.oom_shape)


def probe_device(device: str) -> ModelUnavailable | None:
    """Return the error of a `device` that a known good call shows to compute nothing.

    Return None if it computes, or if this process has not used it.
    """
    problem = probe_gpus() if device != CPU and is_cuda_initialized() else None
    return ModelUnavailable(f"the device does not compute: {describe_exception(problem)}") if problem else None


def format_own_trace(failure: ModelUnavailable) -> str:
    """Return the places where an engine's own code failed, for its author.

    The text is empty if no such code was called and the failure is one of the files, packages, memory or device that
    the engine was given.
    """
    cause = failure.__cause__ or failure
    expected = isinstance(cause, OSError | ImportError | ModelUnavailable)
    if exception_descriptions.has_author_frame(cause) or not (
        expected or is_out_of_memory(cause) or is_device_failure(cause)
    ):
        return exception_descriptions.format_places(cause, describe_exception)
    return ""


def _import_engine(spec: ModelSpec) -> Any:
    module_name, _, attribute = spec.engine.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ModelUnavailable(_describe_missing_module(spec, module_name, error.name or "")) from error
    except Exception as error:
        raise ModelUnavailable(f"importing {module_name} raised {describe_exception(error)}") from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        close = difflib.get_close_matches(attribute, dir(module), 1)
        hint = f"; did you mean {close[0]}?" if close else "."
        raise ModelUnavailable(f"module {module_name} has no {attribute!r}{hint}") from error


def _describe_missing_module(spec: ModelSpec, module_name: str, missing: str) -> str:
    if module_name == missing or module_name.startswith(f"{missing}."):
        return (
            f"engine {spec.engine!r} names a module that is not there: no {missing!r}."
            ' It must be importable from the project\'s folder, as in "my_package.my_module:MyEngine".'
        )
    return f"{module_name} needs the package {missing!r}: install it in the worker's environment."
