"""Checks whether a model takes inputs and parameters, before anything is stored.

They use the catalog's entry and the values only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference.catalog import input_checks as checks
from inference.catalog import parameters, tasks
from inference.catalog.neutral_values import describe_refusal, is_neutral
from inference.catalog.sizes import lengths
from inference.catalog.specs import ModelSpec
from inference.errors import ContextLengthExceeded, InvalidInput, make_context_length_error

SURELY_TOO_LONG = 2.0  # times the limit: the estimate of a text's tokens is rough, the engine counts them
MAX_ROWS = 1024  # of one claim: an input times its labels, or with its sentences; never below max_batch_size


def validate_request(
    spec: ModelSpec, inputs: object, given: Mapping[str, Any], *, most: int | None = None
) -> dict[str, Any]:
    """Return the parameters with their defaults; raise `InvalidInput`, which names the field."""
    validate_inputs(spec, inputs, most=most)
    return validate_parameters(spec, given)


def check_row_count(spec: ModelSpec, rows: int) -> None:
    """Raise `InvalidInput` if one claim cannot run so many rows, as they were measured."""
    if rows > max(MAX_ROWS, spec.max_batch_size):
        raise InvalidInput(f"inputs: their labels or sentences make {rows} texts; at most {MAX_ROWS} run in one call.")


def validate_parameters(spec: ModelSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that ask for something, as the model's own table or its task describes them.

    A value that the table takes stays as it is. Other values may be neutral, or in the words of another server. The
    child process calls this again, since any program may have written the row. Raises `InvalidInput`.
    """
    task, engine = tasks.find_task(spec.task), tasks.find_engine_properties(spec.engine)
    table = {**task.neutral, **engine.neutral}
    shared = {**task.parameters, **engine.list_parameters(task.name)}
    taken: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in given.items():
        described = spec.parameters.get(name)
        is_own = described is not None and described != shared.get(name)
        is_taken = described is not None and parameters.is_value_allowed(described, value)
        if is_neutral(table, name, value) and not (is_own and is_taken):
            continue
        (taken if is_taken else others)[name] = value
    requested = {**taken, **task.translate(others)}
    if known := next((name for name in requested if name in table and name not in spec.parameters), None):
        raise InvalidInput(f"parameters.{known}: {describe_refusal(table, known)}", field=f"parameters.{known}")
    return parameters.resolve_parameters(spec.parameters, requested)


def validate_inputs(spec: ModelSpec, inputs: object, *, most: int | None = None) -> None:
    """Raise `InvalidInput` if the model does not take the inputs.

    A list may have `most` inputs; if that is not given, as many as a batch.
    """
    task = tasks.find_task(spec.task)
    if inputs is None or inputs == []:
        raise InvalidInput("inputs must be one input, or a list of at least one.")
    several = lengths.is_input_list(spec, inputs)
    items = lengths.list_items(spec, inputs)
    most = most or spec.max_batch_size
    if len(items) > most:
        raise InvalidInput(f"inputs: at most {most} inputs make one job here, not {len(items)}: send them in several.")
    for index, item in enumerate(items):
        where = f"inputs[{index}]" if several else "inputs"
        if item is None:
            raise checks.make_wrong_type_error(where, "an input", item)
        task.check(where, item)
        if task.generates:
            _check_prompt(spec, where, item)
        if spec.input:
            parameters.check_parameter(where, spec.input, item)


def _check_prompt(spec: ModelSpec, where: str, prompt: object) -> None:
    """Raise `InvalidInput` for a prompt that is surely too long, and for tokens, which an own engine might not read."""
    if isinstance(prompt, dict) and not spec.is_built_in:
        raise checks.make_wrong_type_error(where, "a text, or a list of chat messages", prompt)
    tokens = lengths.estimate_length(spec, prompt)
    if spec.max_length and tokens > SURELY_TOO_LONG * spec.max_length:
        error = make_context_length_error(spec.max_length, tokens)
        raise ContextLengthExceeded(f"{where}: {error.message} The tokens are estimated.", field=where)
