"""The run of a batch through an engine, with isolation: one bad input never fails its neighbours.

If a call fails as a whole, the item that made it fail is searched for: each call runs half of the suspects, and the
items that were set aside run in one call at the end. One culprit of n costs at most log2(n) + 2 calls beyond the first.
A call that does not fit in memory is halved, and each half is halved again while it does not fit.
"""

import contextlib
import gc
import logging
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from inference.catalog.parameters import check_parameter
from inference.catalog.sizes import lengths
from inference.engines.base import Engine
from inference.engines.runtime.exception_diagnosis import (
    describe_exception,
    is_cuda_initialized,
    is_device_failure,
    is_out_of_memory,
)
from inference.engines.runtime.json_values import convert_to_json
from inference.errors import (
    UNREADABLE,
    BadOutput,
    DeviceFailed,
    EngineError,
    InferenceError,
    InvalidInput,
    OutOfMemory,
    TimedOut,
)
from inference.telemetry import logs
from inference.telemetry.exception_descriptions import format_places

logger = logging.getLogger(__name__)
T = TypeVar("T")

_OPEN = object()  # the outcome of an item that no call has settled yet
MAX_SEARCHES = 2  # culprits of a batch that are searched for; if there are more, the other items run one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    outcomes: list[Any]  # by item: its answer, or the `InferenceError` that it failed with
    engine_s: float  # seconds within the engine's calls
    calls: int  # engine calls that were made; 1 if none failed
    padded: bool = True
    full_text: bool = False  # True if a generated text begins with its prompt where `return_full_text` is not given
    cut_at: int | None = None  # tokens of a text that the model reads
    oom_shape: tuple[int, float] | None = None  # (rows, tokens of each) that did not fit, though its halves did


def run_engine_with_isolation(
    engine: Engine, items: Sequence[Any], parameters: dict[str, Any], prepared: object = None
) -> RunReport:
    """Answer every item, in order.

    `prepared` is what `Engine.prepare` made of all items, or None. Raises `DeviceFailed` if this process cannot use its
    device any more.
    """
    batch = _Batch(engine, items, parameters, prepared)
    if takes := [index for index in range(len(items)) if batch.accepts_input(index)]:
        batch.run_items(takes)
        batch.decide_blame()
    return RunReport(
        outcomes=batch.outcomes,
        engine_s=batch.engine_s,
        calls=batch.calls,
        padded=engine.padded,
        full_text=engine.full_text,
        cut_at=engine.max_tokens,
        oom_shape=batch.oom_shape,
    )


class _Batch:
    """The outcomes of a batch while they come in; `indexes` are places in it."""

    def __init__(self, engine: Engine, items: Sequence[Any], parameters: dict[str, Any], prepared: object) -> None:
        self.engine = engine
        self.prepared = prepared  # None after the first call
        self.items = items
        self.parameters = parameters
        self.outcomes: list[Any] = [_OPEN] * len(items)
        self.engine_s = 0.0
        self.calls = 0
        self.searches = 0
        self.oom_shape: tuple[int, float] | None = None

    def accepts_input(self, index: int) -> bool:
        """Return True if an item is what the model takes as input; else its error is its outcome.

        The web process has checked the item, but a row may also have been written in another way.
        """
        if self.engine.spec.input:
            try:
                check_parameter("inputs", self.engine.spec.input, self.items[index])
            except InvalidInput as error:
                self.outcomes[index] = error
        return self.outcomes[index] is _OPEN

    def run_items(self, indexes: list[int]) -> None:
        problem = self.compute_outcomes(indexes)
        if problem is None or len(indexes) == 1:
            return
        logger.warning(
            "call of %d items failed, looking for the culprit: %s",
            len(indexes),
            logs.mask_model_text(problem.full_message),
        )
        if isinstance(problem, OutOfMemory):
            self.run_halves(indexes)
        elif self.searches < MAX_SEARCHES:
            self.searches += 1
            self.search_culprit(indexes)
        else:
            for index in indexes:
                self.compute_outcomes([index])

    def decide_blame(self) -> None:
        """Decide whether the engine or the input is at fault where the engine raised an error for an item alone.

        If the model answers its example, the input is at fault.
        """
        raised = [index for index, outcome in enumerate(self.outcomes) if type(outcome) is EngineError]
        if not raised:
            return
        with self.engine.reading:
            is_well = self.engine.try_example()
        for index in raised if is_well else ():
            found = self.outcomes[index]
            logger.warning("the model answers its example, and not an input: %s", logs.mask_model_text(found.raised))
            self.outcomes[index] = InvalidInput(UNREADABLE, raised=found.raised, trace=found.trace)

    def search_culprit(self, suspects: list[int]) -> None:
        """Halve the `suspects`, among which a culprit is, until it is alone; then run the items that were set aside."""
        aside: list[int] = []
        while len(suspects) > 1:
            first, second = _split_in_halves(suspects)
            if self.compute_outcomes(first) is None:
                suspects = second
            else:
                suspects, aside = first, second + aside
        if self.outcomes[suspects[0]] is _OPEN:
            self.compute_outcomes(suspects)
        if aside:
            self.run_items(sorted(aside))

    def run_halves(self, indexes: list[int]) -> None:
        for half in _split_in_halves(indexes):
            self.run_items(half)
        if not any(isinstance(self.outcomes[index], OutOfMemory) for index in indexes) and self.oom_shape is None:
            self.oom_shape = self.measure_shape(indexes)

    def measure_shape(self, indexes: list[int]) -> tuple[int, float]:
        shapes = [lengths.measure_inputs(self.engine.spec, self.items[index], self.parameters) for index in indexes]
        rows = sum(size for size, _ in shapes)
        longest = max(length for _, length in shapes)
        return rows, longest if self.engine.padded else sum(size * length for size, length in shapes) / rows

    def compute_outcomes(self, indexes: list[int]) -> InferenceError | None:
        """Make one engine call for these items, and return the error if the call failed as a whole.

        The outcomes of the items are set if it succeeded. An item that fails alone has the error as its outcome.
        """
        problem = self._try_engine(indexes)
        if isinstance(problem, OutOfMemory) and len(indexes) == 1:
            problem = self._try_engine(indexes)  # the memory that was held for larger calls has been given back
        if problem is not None and len(indexes) == 1:
            self.outcomes[indexes[0]] = problem
        return problem

    def _try_engine(self, indexes: list[int]) -> InferenceError | None:
        self.calls += 1
        started = time.perf_counter()
        try:
            answers = self._predict_answers(indexes)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # not `Exception`, as a panic of Rust is none
            return make_job_error(error)
        finally:
            self.engine_s += time.perf_counter() - started
        if problem := _find_shape_problem(answers, len(indexes)):
            return problem
        for index, answer in zip(indexes, answers, strict=True):
            self.outcomes[index] = convert_item_answer(answer)
        return None

    def _predict_answers(self, indexes: list[int]) -> Any:
        prepared, self.prepared = self.prepared, None
        if prepared is not None and len(indexes) == len(self.items):
            # The search finds the one of several items that is at fault. A single item is left to `predict`, which
            # guards its shortcuts.
            with contextlib.suppress(*([Exception] if len(indexes) == 1 else [])):
                answers = self.engine.predict_prepared_inputs(prepared, dict(self.parameters))
                if answers is not None:
                    return answers
        with self.engine.reading:
            return self.engine.predict([self.items[index] for index in indexes], dict(self.parameters))


def isolate_failing_items(call: Callable[[Sequence[T]], Sequence[Any]], items: Sequence[T]) -> list[Any]:
    """Return the answer of `call` to each item, or the `InferenceError` that an item fails with alone.

    If `call` raises an error, it is called again with each half of the items, until an item at fault is alone. Raises
    `DeviceFailed` if the device has failed.
    """
    try:
        return list(call(items))
    except Exception as error:
        found = make_job_error(error)
    if len(items) == 1:
        return [found]
    first, second = _split_in_halves(items)
    return isolate_failing_items(call, first) + isolate_failing_items(call, second)


def _split_in_halves(items: Sequence[T]) -> tuple[list[T], list[T]]:
    middle = len(items) // 2
    return list(items[:middle]), list(items[middle:])


def _find_shape_problem(answers: object, expected: int) -> BadOutput | None:
    if not isinstance(answers, (list, tuple)):
        return BadOutput(f"The engine must answer a list, one answer an input, not {type(answers).__name__}.")
    if len(answers) != expected:
        return BadOutput(
            f"The engine answered {len(answers)} items to {expected} inputs; it must be one answer an input."
        )
    return None


def convert_item_answer(answer: object) -> Any:
    """Return the answer to one item as plain JSON values, or as an `InferenceError` if it is an error or unusable."""
    if isinstance(answer, BaseException):
        return make_job_error(answer)
    try:
        return convert_to_json(answer)
    except BadOutput as error:
        return error
    except Exception as error:  # an object's own code raised it, or the answer has lists that hold themselves
        raise_if_device_failed(error)  # such as reading a tensor that the device failed to compute
        return BadOutput(
            "The engine's answer could not be read.", raised=describe_exception(error), trace=format_places(error)
        )


def make_job_error(error: BaseException) -> InferenceError:
    """Return the `InferenceError` to record for an exception. Raises `DeviceFailed` if the device has failed.

    The exception itself is not kept: its traceback holds the call's tensors.
    """
    if isinstance(error, InvalidInput | EngineError | OutOfMemory | TimedOut):
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)
    if isinstance(error, BadOutput):  # its message is of the engine
        return BadOutput("The model's answer cannot be used.", raised=error.full_message, trace=format_places(error))
    raise_if_device_failed(error)
    raised, trace = describe_exception(error), format_places(error)
    if is_out_of_memory(error):
        _free_memory(error)
        return OutOfMemory(raised, trace=trace)
    return EngineError(raised, trace=trace)


def raise_if_device_failed(error: BaseException) -> None:
    """Raise `DeviceFailed` if the device is in an error state: this process cannot go on then."""
    if is_device_failure(error):
        raise DeviceFailed(f"The device is in an error state. {describe_exception(error)}") from error


def _free_memory(error: BaseException) -> None:
    """Free the memory that a failed call has left: its frames hold tensors until they are cleared."""
    chain: list[BaseException] = [error]
    for held in chain:
        traceback.clear_frames(held.__traceback__)
        behind = (held.__cause__, held.__context__)
        chain += [other for other in behind if other and all(other is not known for known in chain)]
    gc.collect()
    if is_cuda_initialized():
        try:
            sys.modules["torch"].cuda.empty_cache()
        except Exception as problem:
            raise_if_device_failed(problem)
            raise
