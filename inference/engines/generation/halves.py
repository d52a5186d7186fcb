"""Run together; what raises is run again in halves, until whoever is at fault is alone."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from inference.engines import isolate

T = TypeVar("T")


def narrowed(call: Callable[[Sequence[T]], Sequence[Any]], items: Sequence[T]) -> list[Any]:
    """What `call` answers to each item, or the `InferenceError` that it fails with alone. Raises `DeviceFailed`."""
    try:
        return list(call(items))
    except Exception as error:
        failure = isolate.failure(error)
    if len(items) == 1:
        return [failure]
    middle = len(items) // 2
    return narrowed(call, items[:middle]) + narrowed(call, items[middle:])
