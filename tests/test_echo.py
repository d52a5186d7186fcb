"""The echo engine misbehaves when it is told to: what cannot be survived, in a process of its own."""

import signal
import subprocess
import sys
from typing import Any
from unittest import TestCase

from inference.catalog.specs import ModelSpec
from inference.engines.runtime.engine_calls import run_engine_with_isolation
from inference.errors import InvalidInput, ModelUnavailable
from tests.conditions import PATIENCE_S
from tests.echo import EchoEngine, expected

PREAMBLE = """
import itertools, resource, signal, sys, threading, time
from inference.catalog.specs import ModelSpec
from tests.echo import EchoEngine, expected
from inference.engines.runtime.engine_calls import run_engine_with_isolation
engine = EchoEngine(ModelSpec(name="echo"))
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PREAMBLE + code]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)


class EchoTests(TestCase):
    def test_it_loads_no_torch(self) -> None:
        done = python("print(run_engine_with_isolation(engine, ['a'], {}).outcomes, 'torch' in sys.modules)")
        self.assertEqual(done.stdout.strip(), f"{[expected('a')]} False", done.stderr)

    def test_the_answer_is_a_function_of_the_input(self) -> None:
        for value in ("a", "", 3, None, {"b": [1, {"c": 2}]}, ["a"]):
            self.assertEqual(
                run_engine_with_isolation(EchoEngine(ModelSpec(name="echo")), [value], {}).outcomes, [expected(value)]
            )
        self.assertNotEqual(expected("a")["digest"], expected("b")["digest"])

    def test_an_unknown_failure_names_the_known_ones(self) -> None:
        outcome: Any = run_engine_with_isolation(
            EchoEngine(ModelSpec(name="echo")), [{"fail": "explode"}], {}
        ).outcomes[0]
        self.assertIsInstance(outcome, InvalidInput)
        self.assertIn("hang-sleep", outcome.message)

    def test_an_unknown_option_names_the_known_ones(self) -> None:
        with self.assertRaisesRegex(ModelUnavailable, "fixed_ms"):
            EchoEngine(ModelSpec(name="echo", options={"speed": 1}))

    def test_a_crash_is_a_real_segmentation_fault(self) -> None:
        self.assertEqual(python("engine.predict([{'fail': 'crash'}], {})").returncode, -signal.SIGSEGV)

    def test_hangs_end_after_their_seconds(self) -> None:
        for kind in ("hang-sleep", "hang-busy"):
            answer = EchoEngine(ModelSpec(name="echo")).predict([{"fail": kind, "seconds": 0.01}], {})
            self.assertEqual(answer, [expected({"fail": kind, "seconds": 0.01})])

    def test_a_hang_in_c_lets_no_thread_run_and_hears_no_signal(self) -> None:
        """Another thread notes the time again and again: the hang is a gap of all its seconds, though signals come."""
        done = python("""
signal.signal(signal.SIGALRM, lambda *_: None)
beats = []  # moments: how long the hang is, is the subject
def beat():
    while True:
        beats.append(time.monotonic())
        time.sleep(0.001)
threading.Thread(target=beat, daemon=True).start()
while not beats:
    time.sleep(0.001)
signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
engine.predict([{"fail": "hang-gil", "seconds": 1}], {})
signal.setitimer(signal.ITIMER_REAL, 0)
beats.append(time.monotonic())
print(max(later - before for before, later in itertools.pairwise(list(beats))) >= 1)
""")
        self.assertEqual(done.stdout.strip(), "True", done.stderr)

    def test_an_item_that_exhausts_memory_fails_alone(self) -> None:
        done = python("""
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
report = run_engine_with_isolation(engine, ["a", {"fail": "exhaust", "megabytes": 4096}, "c"], {})
codes = [getattr(outcome, "code", outcome) for outcome in report.outcomes]
print(codes == [expected("a"), "out_of_memory", expected("c")])
""")
        self.assertEqual(done.stdout.strip(), "True", done.stderr)
