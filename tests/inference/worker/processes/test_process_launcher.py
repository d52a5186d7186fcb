"""The start of child processes and their end, with the real process that forks."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import TestCase
from unittest.mock import patch

import numpy
from django.conf import settings

from inference.catalog import specs
from inference.catalog.specs import ModelSpec
from inference.fields.ids import make_row_id
from inference.worker.child import process as child_process
from inference.worker.processes import process_launcher
from inference.worker.processes.process_launcher import ProcessLauncher
from tests.conditions import PATIENCE_S, eventually

IMPORTED_AHEAD = """
import os, sys, threading
import torch
def refused(*_): raise AssertionError("the device is touched")
for name in ("is_available", "device_count", "_lazy_init"):
    setattr(torch.cuda, name, refused)
import inference.worker.processes.preload
from django.db import connections
from inference.store import job_rows
assert "inference.engines.pipeline.engine" in sys.modules and "transformers" in sys.modules
# OpenBLAS ends its own before a fork, and starts them after it: here it has none.
assert len(os.listdir("/proc/self/task")) == threading.active_count() == 1, os.listdir("/proc/self/task")
assert all(connection.connection is None for connection in connections.all()), "a connection would be shared"
assert "inference.admin.pages.jobs" not in sys.modules, "the admin's pages, which only web processes show"
print("nothing else")
"""

LOOKS_FOR_GPUS = """
import sys
import torch
torch._C._cuda_getDeviceCount = lambda: print("CUDA has begun") or 0  # also in a build for CPUs
import inference.worker.processes.preload
print(sys.modules["looks"].found)
"""

STARTER = """
import multiprocessing, sys, time
import django
django.setup()
from tests.inference.worker.processes.test_process_launcher import outlive
if __name__ == "__main__":
    process = multiprocessing.get_context("forkserver").Process(target=outlive, args=(sys.argv[1],))
    process.start()
    print(process.pid, flush=True)
    time.sleep(3600)
"""


def send_process_ids(pipe: Any) -> None:
    pipe.send((os.getpid(), os.getppid()))


def send_random_numbers(pipe: Any) -> None:
    import torch

    pipe.send((os.getppid(), {make_row_id().int % 2**32, numpy.random.random(), float(torch.rand(1))}))


def read_in_threads(pipe: Any) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    found = tokenizer.encode_batch(["a b b"] * 1000)
    pipe.send((len(os.listdir("/proc/self/task")) > 2, {tuple(text.ids) for text in found}))


def leave(code: int) -> None:
    sys.exit(code)


def stay() -> None:
    threading.Event().wait()


def leave_with_a_thread() -> None:
    threading.Thread(target=stay).start()
    child_process.exit_process(3)


def outlive(file: str) -> None:
    """Hold the interpreter, in which no thread could look whether the main process is gone."""
    child_process.end_with_main_process()
    Path(file).touch()
    import re

    re.match(r"(a+)+$", "a" * 64 + "b")


class LauncherCase(TestCase):
    imports: tuple[ModelSpec, ...] = ()

    def setUp(self) -> None:
        process_launcher.start_fork_server(self.imports)
        self.launcher = ProcessLauncher()
        self.reaped: list[BaseProcess] = []
        self.addCleanup(self.launcher.stop_thread)

    def wait_for(self, submit: Callable[[Callable[[Any], None]], None]) -> Any:
        results: list[Any] = []
        submit(results.append)

        def delivered() -> list[Any]:
            self.launcher.deliver_results()
            return results

        return eventually(delivered, "there is a result")[0]

    def start(self, function: Callable[..., object], *arguments: Any) -> Any:
        started = self.wait_for(lambda then: self.launcher.start_process(function, arguments, then))
        if isinstance(started, BaseProcess):
            self.addCleanup(self.end, started, started.pid or 0)
        return started

    def end(self, process: BaseProcess, pid: int) -> None:
        if process not in self.reaped:
            os.kill(pid, signal.SIGKILL)
            self.reap(process)

    def reap(self, process: BaseProcess) -> Any:
        self.reaped.append(process)
        return self.wait_for(lambda then: self.launcher.call_on_exit(process, then))

    def look(self, process: BaseProcess) -> Any:
        return self.wait_for(lambda then: self.launcher.request_exit_code(process, then))

    def run_in_child(self, function: Callable[[Any], None]) -> Any:
        """Return what a new child sends before it ends."""
        import multiprocessing

        ours, theirs = multiprocessing.Pipe()
        process = self.start(function, theirs)
        assert ours.poll(PATIENCE_S)
        received = ours.recv()
        assert self.reap(process) == 0
        return received

    def who_forks(self) -> int:
        pid, parent = self.run_in_child(send_process_ids)
        self.assertNotIn(os.getpid(), (pid, parent))
        return int(parent)

    def kill(self, parent: int) -> None:
        """Return once it has ended: until then it would be asked."""
        os.kill(parent, signal.SIGKILL)
        os.waitid(os.P_PID, parent, os.WEXITED | os.WNOWAIT)


class EndsTests(LauncherCase):
    """The process that forks has imported little, which is quicker."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.addClassCleanup(_end_the_process_that_forks)  # who comes next has one that imports more

    def test_how_a_child_ended_is_known(self) -> None:
        self.assertEqual(self.reap(self.start(leave, 3)), 3)
        killed = self.start(stay)
        self.assertIsNone(self.look(killed))
        os.kill(killed.pid, signal.SIGKILL)
        self.assertEqual(self.reap(killed), -signal.SIGKILL)

    def test_one_in_which_a_thread_runs_on_ends(self) -> None:
        with patch.object(process_launcher, "LEAVES_S", PATIENCE_S):
            self.assertEqual(self.reap(self.start(leave_with_a_thread)), 3)

    def test_one_that_has_closed_its_connection_and_does_not_end_is_killed(self) -> None:
        with patch.object(process_launcher, "LEAVES_S", 0.1):
            self.assertEqual(self.reap(self.start(stay)), -signal.SIGKILL)

    def test_when_the_process_that_forks_is_killed_children_live_and_another_one_forks(self) -> None:
        parent = self.who_forks()
        living = self.start(stay)
        self.kill(parent)
        self.assertNotEqual(self.who_forks(), parent)
        self.assertIsNone(self.look(living))  # how it ends will not be known
        os.kill(living.pid, 0)
        pid = living.pid
        os.kill(pid, signal.SIGKILL)
        self.assertIsNone(self.reap(living))

    def test_a_fork_that_fails_is_reported_and_costs_nobody_else(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        refuses = Path(folder) / "refuses"
        self.kill(self.who_forks())
        imports = "tests.inference.worker.processes.refused_forks"
        with patch.dict(os.environ, {process_launcher.IMPORTS: imports, "REFUSES_FORKS": str(refuses)}):
            parent = self.who_forks()
            living = self.start(stay)
            refuses.touch()
            opened = len(os.listdir("/proc/self/fd"))
            for _ in range(3):
                with self.assertLogs("inference.worker.processes.process_launcher", "ERROR"):
                    refused = self.start(stay)
                self.assertIsInstance(refused, EOFError)
            self.assertLess(len(os.listdir("/proc/self/fd")), opened + 3)  # other threads may have opened some
            refuses.unlink()
            self.assertNotEqual(self.who_forks(), parent)
        os.kill(living.pid, 0)
        _end_the_process_that_forks()

    def test_where_too_few_file_descriptors_are_left_none_is_made(self) -> None:
        opened = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            with patch("os.dup", side_effect=[os.open("/", os.O_RDONLY), OSError(errno.EMFILE, "told so")]):
                self.assertIsInstance(self.start(stay), OSError)
        self.assertLess(len(os.listdir("/proc/self/fd")), opened + 10)  # other threads may have opened some

    def test_another_process_that_forks_begins_its_imports_as_soon_as_the_first_has_ended(self) -> None:
        living = self.start(stay)
        self.kill(self.who_forks())
        with patch("multiprocessing.forkserver.ensure_running", side_effect=OSError) as ensure_running:
            self.assertIsNone(self.look(living))
        ensure_running.assert_called_once_with()
        self.assertEqual(self.reap(self.start(leave, 3)), 3)

    def test_a_stop_does_not_wait_for_a_start_that_takes_long(self) -> None:
        go_on = threading.Event()
        self.addCleanup(go_on.set)
        slow = ProcessLauncher()
        self.enterContext(patch.object(process_launcher, "STOPS_S", 0.1))
        self.enterContext(patch.object(ProcessLauncher, "_start_process", lambda *_: go_on.wait()))
        slow.start_process(stay, (), lambda _: None)
        slow.stop_thread()
        self.assertFalse(go_on.is_set())

    def test_a_caller_that_has_no_file_descriptors_left_fails_alone(self) -> None:
        living = self.start(stay)
        full = OSError(errno.EMFILE, "told so")
        with patch("multiprocessing.reduction.sendfds", side_effect=full):
            self.assertIs(self.start(stay), full)
        eventually(lambda: isinstance(self.start(leave, 0), BaseProcess), "another process forks")
        os.kill(living.pid, 0)


def _end_the_process_that_forks() -> None:
    case = LauncherCase()
    case.setUp()
    try:
        case.kill(case.who_forks())
    finally:
        case.doCleanups()


class ImportsTests(LauncherCase):
    imports = (ModelSpec(name="fill"),)

    def test_children_have_one_parent_and_nothing_random_in_common(self) -> None:
        (parent, first), (same, second) = (self.run_in_child(send_random_numbers) for _ in range(2))
        self.assertEqual(parent, same)
        self.assertFalse(first & second)

    def test_it_only_imports(self) -> None:
        ours = [specs.TRANSFORMERS_ENGINE, "inference.engines.embeddings:SentenceEmbeddings"]
        modules = " ".join(engine.partition(":")[0] for engine in ours)
        self.assertEqual(self.printed(IMPORTED_AHEAD, f"{modules} no.such.module"), "nothing else\n")

    def printed(self, code: str, imports: str, **environment: str) -> str:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", process_launcher.IMPORTS: imports, **environment}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            cwd=settings.BASE_DIR,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return done.stdout or done.stderr

    def test_a_library_that_looks_for_gpus_as_it_is_imported_begins_nothing(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        Path(folder, "looks.py").write_text("import torch\nfound = torch.cuda.is_available()\n")
        found = self.printed(LOOKS_FOR_GPUS, "looks", PYTHONPATH=folder, CUDA_VISIBLE_DEVICES="0")
        self.assertEqual(found, "False\n")

    def test_children_may_read_in_threads(self) -> None:
        for _ in range(2):
            with patch.dict(os.environ, TOKENIZERS_PARALLELISM="true", RAYON_NUM_THREADS="3"):
                _end_the_process_that_forks()
                self.assertEqual(self.run_in_child(read_in_threads), (True, {(0, 1, 1)}))


class MainProcessTests(TestCase):
    def test_a_child_ends_with_the_main_process_whatever_it_does(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        busy, script = Path(folder, "busy"), Path(folder, "starter.py")
        script.write_text(STARTER)
        environment = {**os.environ, "PYTHONPATH": str(settings.BASE_DIR)}
        starter = subprocess.Popen(
            [sys.executable, str(script), str(busy)],
            cwd=settings.BASE_DIR,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(starter.communicate)
        self.addCleanup(starter.kill)
        assert starter.stdout
        pid = int(starter.stdout.readline())
        eventually(busy.exists, "the child computes")
        starter.kill()
        eventually(lambda: not Path(f"/proc/{pid}").exists(), "the child has ended")
