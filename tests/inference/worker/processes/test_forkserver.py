"""The process that replicas are forked from, with real processes."""

import errno
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import TestCase
from unittest.mock import Mock, patch

import numpy
from billiard import get_context
from celery import platforms
from django.conf import settings

from inference.catalog import specs
from inference.catalog.specs import ModelSpec
from inference.fields.ids import new_job_id
from inference.worker.processes import forkserver
from inference.worker.processes.forkserver import ForkedProcess, Started
from tests.conditions import PATIENCE_S, eventually

IMPORTED_AHEAD = """
import os, sys, threading
import torch
def refused(*_): raise AssertionError("the device is touched")
for name in ("is_available", "device_count", "_lazy_init"):
    setattr(torch.cuda, name, refused)
import inference.worker.processes.preload
from django.db import connections
from inference.store import rows
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


def send_process_ids(pipe: Any) -> None:
    pipe.send((os.getpid(), os.getppid()))


def send_random_numbers(pipe: Any) -> None:
    import torch

    pipe.send((os.getppid(), {new_job_id().int % 2**32, numpy.random.random(), float(torch.rand(1))}))


def send_environment(pipe: Any) -> None:
    pipe.send({name: os.environ.get(name) for name in forkserver.NO_GPUS})


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


def ended(process: Any) -> Any:
    return eventually(lambda: None if process.exitcode is None else (process.exitcode,), "it ended")[0]


def run_in_child(target: Callable[[Any], None]) -> Any:
    """Return what a new child sends before it ends."""
    ours, theirs = get_context("spawn").Pipe()
    process = ForkedProcess(target=target, args=(theirs,))
    process.start()
    assert ours.poll(PATIENCE_S)
    received = ours.recv()
    assert ended(process) == 0
    return received


def who_forks() -> int:
    pid, parent = run_in_child(send_process_ids)
    assert os.getpid() not in (pid, parent)
    return int(parent)


def kill(parent: int) -> None:
    """Return once it has ended: until then it would be asked."""
    os.kill(parent, signal.SIGKILL)
    os.waitid(os.P_PID, parent, os.WEXITED | os.WNOWAIT)


class EndsTests(TestCase):
    """The process that forks has imported little, which is quicker."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        forkserver.prepare([])
        cls.addClassCleanup(lambda: kill(who_forks()))  # who comes next has one that imports more

    def start(self, target: Any, *arguments: Any) -> Any:
        process = ForkedProcess(target=target, args=arguments)
        process.start()
        self.addCleanup(process.terminate)
        return process

    def test_how_a_child_ended_is_known(self) -> None:
        self.assertEqual(ended(self.start(leave, 3)), 3)
        killed = self.start(stay)
        self.assertIsNone(killed.exitcode)
        os.kill(killed.pid, signal.SIGKILL)
        self.assertEqual(ended(killed), -signal.SIGKILL)
        terminated = self.start(stay)
        terminated.terminate()
        self.assertEqual(terminated._popen.wait(), -signal.SIGTERM)

    def test_when_the_process_that_forks_is_killed_another_one_does(self) -> None:
        parent = who_forks()
        living = self.start(stay)
        kill(parent)
        self.assertEqual(ended(living), -signal.SIGKILL)
        self.assertNotEqual(who_forks(), parent)

    def test_a_request_to_a_parent_that_is_ending_is_served_by_the_next(self) -> None:
        connect, requests = multiprocessing.forkserver.connect_to_new_process, list[Any]()

        def refused_once(fds: Any) -> Any:
            requests.append(fds)
            if len(requests) == 1:
                raise ConnectionResetError
            return connect(fds)

        with (
            patch("multiprocessing.forkserver.connect_to_new_process", refused_once),
            self.assertLogs("inference.worker.processes.forkserver", "ERROR"),
        ):
            self.assertEqual(ended(self.start(leave, 3)), 3)
        self.assertEqual(len(requests), 2)

    def test_a_fork_that_fails_raises_at_its_caller_and_costs_nobody_else(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        refuses = Path(folder) / "refuses"
        kill(who_forks())
        imports = "tests.inference.worker.processes.refused_forks"
        with patch.dict(os.environ, {forkserver.IMPORTS: imports, "REFUSES_FORKS": str(refuses)}):
            parent = who_forks()
        self.addCleanup(kill, parent)  # who comes next has one of its own
        living = self.start(stay)
        refuses.touch()
        of_parent, of_this = self.open_by(parent), self.open_by(os.getpid())
        for _ in range(10):
            with self.assertRaises(OSError) as refused:
                self.start(stay)
            self.assertEqual(refused.exception.errno, errno.ENOMEM)
        self.assertLess(self.open_by(os.getpid()), of_this + 10)  # other threads may have opened some
        # It may have had those of one that had ended, and closes what was refused after it has told so.
        eventually(lambda: self.open_by(parent) <= of_parent, "it has closed what it received")
        refuses.unlink()
        self.assertEqual(who_forks(), parent)
        self.assertIsNone(living.exitcode)

    def open_by(self, pid: int) -> int:
        """How many file descriptors."""
        return len(os.listdir(f"/proc/{pid}/fd"))

    def test_a_caller_that_has_no_file_descriptors_left_fails_alone(self) -> None:
        parent = who_forks()
        full = OSError(errno.EMFILE, "told so")
        with patch("multiprocessing.reduction.sendfds", side_effect=full), self.assertRaises(OSError) as refused:
            self.start(stay)
        self.assertIs(refused.exception, full)
        self.assertEqual(who_forks(), parent)


class ImportsTests(TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        forkserver.prepare([ModelSpec(name="fill")])

    def test_children_have_one_parent_and_nothing_random_in_common(self) -> None:
        (parent, first), (same, second) = run_in_child(send_random_numbers), run_in_child(send_random_numbers)
        self.assertEqual(parent, same)
        self.assertFalse(first & second)

    def test_a_child_does_not_stay_if_its_parent_was_killed_as_it_began(self) -> None:
        process = Mock()
        with patch.object(Started, "parent", os.getpid(), create=True), patch.object(platforms, "set_pdeathsig"):
            self.assertEqual(Started(process)._bootstrap(parent_sentinel=-1), os.EX_SOFTWARE)
        process._bootstrap.assert_not_called()

    def test_it_only_imports(self) -> None:
        ours = [specs.TRANSFORMERS_ENGINE, "inference.engines.embeddings:SentenceEmbeddings"]
        modules = " ".join(engine.partition(":")[0] for engine in ours)
        self.assertEqual(self.printed(IMPORTED_AHEAD, f"{modules} no.such.module"), "nothing else\n")

    def printed(self, code: str, imports: str, **environment: str) -> str:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", forkserver.IMPORTS: imports, **environment}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd=settings.BASE_DIR, capture_output=True, text=True,
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        return done.stdout or done.stderr

    def test_a_library_that_looks_for_gpus_as_it_is_imported_begins_nothing(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        Path(folder, "looks.py").write_text("import torch\nfound = torch.cuda.is_available()\n")
        found = self.printed(LOOKS_FOR_GPUS, "looks", PYTHONPATH=folder, CUDA_VISIBLE_DEVICES="0")
        self.assertEqual(found, "False\n")

    def test_children_may_read_in_threads(self) -> None:
        for _ in range(2):
            with patch.dict(os.environ, TOKENIZERS_PARALLELISM="true", RAYON_NUM_THREADS="3"):
                self.assertEqual(run_in_child(read_in_threads), (True, {(0, 1, 1)}))

    def test_children_see_the_gpus_that_their_starter_does(self) -> None:
        for there in (None, "1,2"):
            kept = {name: value for name, value in os.environ.items() if name not in forkserver.NO_GPUS}
            given = {"CUDA_VISIBLE_DEVICES": there} if there else {}
            with patch.dict(os.environ, {**kept, **given}, clear=True):
                seen = run_in_child(send_environment)
            self.assertEqual(seen, {"CUDA_VISIBLE_DEVICES": there, "PYTORCH_NVML_BASED_CUDA_CHECK": None})
