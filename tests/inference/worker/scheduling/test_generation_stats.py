"""The event loop notes how much text a worker generates, and two threads read that."""

import time
from collections.abc import Iterator
from typing import Any
from unittest import TestCase

from inference.worker.scheduling.generation_stats import WINDOW_S, _Model


class Sample(tuple[float, int]):
    """A sample at which the thread that reads it is interrupted."""

    meanwhile: Any

    def __iter__(self) -> Iterator[Any]:
        self.meanwhile()
        return super().__iter__()

    def __getitem__(self, at: Any) -> Any:
        self.meanwhile()
        return super().__getitem__(at)


class SpeedTests(TestCase):
    def setUp(self) -> None:
        self.model, self.now = _Model(), time.monotonic()

    def test_only_the_last_moments_count(self) -> None:
        self.model.samples += [(self.now - 2 * WINDOW_S, 1000), (self.now, 70)]
        self.assertEqual(self.model.tokens_per_s(self.now), 70 / WINDOW_S)
        self.model.add_tokens(30)
        self.assertEqual([tokens for _, tokens in self.model.samples], [70, 30])

    def test_more_may_be_noted_while_it_is_read(self) -> None:
        sample = Sample((self.now, 70))
        sample.meanwhile = lambda: self.model.samples.append((self.now, 30))
        self.model.samples += [sample, (self.now, 1)]
        self.assertEqual(self.model.tokens_per_s(self.now), 71 / WINDOW_S)

    def test_two_may_read_what_is_too_old(self) -> None:
        sample = Sample((self.now - 2 * WINDOW_S, 70))
        sample.meanwhile = self.model.samples.clear
        self.model.samples.append(sample)
        self.assertEqual(self.model.tokens_per_s(self.now), 0)
