"""A second look at what failed of end-to-end tests and faults: once more by itself, when everything else has ended.

They talk to real processes, on a machine that other tests keep busy. What holds by itself is named as unstable, with
what it said first, and does not fail the run. A test of one process is never run again.
"""

from __future__ import annotations

import re
import unittest
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

TAG = "end-to-end"
MOST = 3  # unstable tests of a run; more of them fail it
SHOWN_LINES = 60  # of what an unstable test said first

Run = Callable[[unittest.TestSuite], unittest.TestResult]


@dataclass(frozen=True, slots=True)
class Unstable:
    """A test or a fault that failed among others and held by itself."""

    name: str
    said: str

    def __str__(self) -> str:
        lines = self.said.rstrip().splitlines()[-SHOWN_LINES:]
        return "\n".join([f"unstable: {self.name} failed, and held when it ran by itself", *lines])


def look_again(result: unittest.TestResult, run: Run) -> list[Unstable]:
    """Run the end-to-end tests that failed once more, and take those that hold now out of the result's failures.

    Nothing runs, and all stay failures, where a test of one process failed too: such a run fails anyway. So does one
    that was stopped at a failure, as `--failfast` asks: other tests have not run.
    """
    failed = {_name(test): said for test, said in [*result.failures, *result.errors]}
    if result.shouldStop or not all(map(is_end_to_end, failed)):
        return []
    unstable = find_unstable(failed, lambda name: _holds(name, run))
    names = {test.name for test in unstable}
    for kept in (result.failures, result.errors):
        kept[:] = [(test, said) for test, said in kept if _name(test) not in names]
    return unstable


def find_unstable(failed: Mapping[str, str], holds: Callable[[str], bool]) -> list[Unstable]:
    """Try each of the failed, by name with what it said, once more by itself: `holds` runs it.

    Returns those that hold now, and none at all where more than `MOST` failed.
    """
    if len(failed) > MOST:
        return []
    return [Unstable(name, said) for name, said in failed.items() if holds(name)]


def is_end_to_end(name: str) -> bool:
    """Return whether the test or class of this dotted name is tagged as end to end."""
    tests = list(_tests(_load(name)))
    return bool(tests) and all(TAG in getattr(test, "tags", ()) for test in tests)


def _name(test: unittest.TestCase) -> str:
    """Return the dotted name of a test, or that of a class whose setUpClass or tearDownClass failed."""
    if isinstance(case := getattr(test, "test_case", test), unittest.TestCase):
        return case.id()
    found = re.fullmatch(r"\w+ \((.+)\)", test.id())
    return found[1] if found else test.id()


def _holds(name: str, run: Run) -> bool:
    result = run(_load(name))
    return result.wasSuccessful() and result.testsRun > len(result.skipped)


def _load(name: str) -> unittest.TestSuite:
    return unittest.TestLoader().loadTestsFromName(name)


def _tests(suite: unittest.TestSuite) -> Iterable[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _tests(test)
        else:
            yield test
