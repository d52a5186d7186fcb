"""A stand-in for the GPUs that torch sees: what it says of them, and how it fails."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock, patch

GB = 10**9


class OutOfMemoryError(RuntimeError):
    """As `torch.OutOfMemoryError`."""


class Gpus:
    """`broken`: what each call to a GPU raises from now on, as a device in an error state does."""

    def __init__(self, count: int = 1, memory: int = 80 * GB) -> None:
        self.count, self.memory = count, memory
        self.broken: Exception | None = None
        self.emptied = 0  # times that the cache was
        self.fractions: dict[int, float] = {}

    def call(self, *_: Any, **__: Any) -> Any:
        if self.broken:
            raise self.broken
        return Mock()

    def empty_cache(self) -> None:
        self.call()
        self.emptied += 1

    def torch(self) -> Any:
        cuda = Mock(
            is_initialized=lambda: True,
            device_count=lambda: self.count,
            synchronize=self.call,
            empty_cache=self.empty_cache,
            set_per_process_memory_fraction=self.limit,
            memory_allocated=lambda _: 0,
            get_device_properties=lambda _: Mock(total_memory=self.memory),
        )
        return Mock(cuda=cuda, ones=self.call, OutOfMemoryError=OutOfMemoryError)

    def limit(self, fraction: float, index: int) -> None:
        self.call()
        self.fractions[index] = fraction


@contextlib.contextmanager
def gpus(count: int = 1) -> Iterator[Gpus]:
    """In the place of torch, for what asks it of its GPUs only."""
    found = Gpus(count)
    with patch.dict(sys.modules, torch=found.torch()):
        yield found
