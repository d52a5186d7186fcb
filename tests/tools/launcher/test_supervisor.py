"""Programs are kept running, stopped in order, and never left behind."""

import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import unittest
from dataclasses import replace
from unittest.mock import call, patch

from tests.conditions import PATIENCE_S, eventually
from tools.launcher import reaper, supervisor
from tools.launcher.reaper import Reaper
from tools.launcher.supervisor import Child, Program, Supervisor, describe_exit

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
PARENT = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); print('up')"


def program(code: str, *, name: str = "p", grace_s: float = PATIENCE_S) -> Program:
    return Program(name=name, command=(sys.executable, "-c", code), grace_s=grace_s)


HEARS = """
import signal, time
signal.signal(signal.SIGHUP, lambda *_: print("heard", flush=True))
print("up", flush=True)
while True: time.sleep(600)
"""


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __call__(self, name: str, line: str) -> None:
        self.lines.append((name, line))


class TestChild(unittest.TestCase):
    def setUp(self) -> None:
        self.log, self.reaper = Log(), Reaper()
        self.addCleanup(self.reaper.close)

    def child(self, code: str, grace_s: float = PATIENCE_S) -> Child:
        child = Child(program(code, grace_s=grace_s), self.log, self.reaper)
        self.addCleanup(child.kill)
        eventually(lambda: ("p", "up") in self.log.lines, "the program's first line")
        return child

    def test_each_line_of_its_output_reaches_the_log_under_its_name(self) -> None:
        self.child("import sys; print('up'); print('to stderr', file=sys.stderr)")
        eventually(lambda: ("p", "to stderr") in self.log.lines, "the line on stderr")

    def test_it_leaves_on_sigterm(self) -> None:
        self.assertEqual(self.child(SLEEPER).stop(), -signal.SIGTERM)

    def test_one_that_ignores_sigterm_is_killed_after_its_grace_time(self) -> None:
        self.assertEqual(self.child(DEAF, grace_s=0.1).stop(), -signal.SIGKILL)

    def test_one_that_ignores_sigterm_is_killed_at_once_in_a_hurry(self) -> None:
        hurry = threading.Event()
        hurry.set()
        self.assertEqual(self.child(DEAF, grace_s=600).stop(hurry), -signal.SIGKILL)

    def test_what_it_started_ends_with_it(self) -> None:
        child = self.child(PARENT)
        child.stop()
        eventually(lambda: not reaper.is_alive(child.pid), "the end of the group")


class TestSupervisor(unittest.TestCase):
    def test_a_program_that_ends_starts_again_and_the_log_says_so(self) -> None:
        log = Log()
        service = Supervisor(log)
        service.start([program(SLEEPER)])
        thread = threading.Thread(target=service.run)
        thread.start()
        try:
            eventually(lambda: ("p", "up") in log.lines, "the first start")
            os.kill(service.supervised[0].child.pid, signal.SIGKILL)
            eventually(lambda: log.lines.count(("p", "up")) == 2, "the second start")
        finally:
            service.stop()
            thread.join()
        self.assertIn(("up", "p was killed by SIGKILL; it starts again in 1 s"), log.lines)

    def test_one_that_cannot_be_started_again_is_tried_again_and_ends_no_other(self) -> None:
        log = Log()
        service = Supervisor(log)
        self.addCleanup(service.reaper.close)
        service.start([program("print('up')")])
        (only,) = service.supervised
        only.child.process.wait()
        only.restart_if_ended(0.0)
        with patch.object(subprocess, "Popen", side_effect=BlockingIOError("out of processes")):
            only.restart_if_ended(1.0)
        self.assertIn(("up", "p cannot be started: out of processes; tried again in 2 s"), log.lines)
        only.restart_if_ended(3.0)
        self.assertEqual(only.child.process.wait(), 0)

    def test_each_restart_waits_longer_than_the_one_before(self) -> None:
        service = Supervisor(Log())
        self.addCleanup(service.close)
        service.start([program("raise SystemExit(3)")])
        supervised, delays = service.supervised[0], []
        for _ in range(3):
            supervised.child.process.wait()
            supervised.restart_if_ended(supervised.child.started_s)
            assert supervised.restart_at_s is not None
            delays.append(round(supervised.restart_at_s - supervised.child.started_s))
            supervised.restart_if_ended(supervised.restart_at_s)
        self.assertEqual(delays, [1, 2, 4])

    def test_programs_stop_in_the_reverse_of_the_order_they_started_in(self) -> None:
        log = Log()
        service = Supervisor(log)
        service.start([program(SLEEPER, name="broker"), program(SLEEPER, name="web")])
        service.close()
        self.assertEqual([line for name, line in log.lines if name == "up"], ["stopping web", "stopping broker"])

    def test_nothing_is_left_when_the_supervisor_itself_is_killed(self) -> None:
        code = f"""
            import sys
            from tools.launcher.supervisor import Program, Supervisor
            service = Supervisor(lambda name, line: None)
            service.start([Program(name="p", command=(sys.executable, "-c", {SLEEPER!r}))])
            print(service.supervised[0].child.pid, flush=True)
            service.run()
        """
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout
            group = int(process.stdout.readline())
            process.kill()
        eventually(lambda: not reaper.is_alive(group), "the end of the group")


class TestDescribeExit(unittest.TestCase):
    def test_it_names_the_signal_or_the_code(self) -> None:
        self.assertEqual(describe_exit(-9), "was killed by SIGKILL")
        self.assertEqual(describe_exit(2), "ended with exit code 2")


class TestOpenFiles(unittest.TestCase):
    def test_the_limit_is_raised_as_far_as_it_may_be_and_never_lowered(self) -> None:
        most, none = supervisor.OPEN_FILES, resource.RLIM_INFINITY
        for soft, hard, wanted in (
            (256, none, most), (256, 2 * most, most), (256, 512, 512), (most, none, None), (2 * most, none, None),
            (none, none, None), (512, 512, None),
        ):  # fmt: skip
            limits = patch.object(resource, "getrlimit", return_value=(soft, hard))
            with self.subTest(soft=soft, hard=hard), limits, patch.object(resource, "setrlimit") as raised:
                supervisor.raise_open_files_limit()
                expected = [] if wanted is None else [call(resource.RLIMIT_NOFILE, (wanted, hard))]
                self.assertEqual(raised.call_args_list, expected)


class TestHangup(unittest.TestCase):
    def test_it_is_passed_on_to_those_who_hear_it_once_they_have_run_for_a_while(self) -> None:
        log = Log()
        service = Supervisor(log)
        self.addCleanup(service.close)
        service.start([replace(program(HEARS, name="hears"), hears_hangup=True), program(SLEEPER, name="other")])
        for name in ("hears", "other"):
            eventually(lambda name=name: (name, "up") in log.lines, "the program's first line")  # type: ignore[misc]
        service.pass_on_hangup()
        with patch.object(supervisor, "STABLE_S", 0.0):
            service.pass_on_hangup()
        eventually(lambda: ("hears", "heard") in log.lines, "it hears")
        self.assertEqual([supervised.child.exit_code for supervised in service.supervised], [None, None])
