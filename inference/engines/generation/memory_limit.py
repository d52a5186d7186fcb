"""A limit on how many rows or tokens are computed at once while memory is short."""

import sys

CALM = 64  # steps after which more are tried again


class TemporaryLimit:
    """A limit that holds for `CALM` steps after it was lowered. Otherwise there is none."""

    def __init__(self) -> None:
        self.value = sys.maxsize
        self._steps_left = 0

    def lower_to(self, value: int) -> None:
        self.value, self._steps_left = max(1, value), CALM

    def count_step(self) -> None:
        self._steps_left -= 1
        if self._steps_left <= 0:
            self.value = sys.maxsize
