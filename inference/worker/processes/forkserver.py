"""Starts pool children by forks of one process that has imported what they need: a replica is there in a fraction of a
second, also after a crash, and replicas share the memory of the libraries.

That process (`multiprocessing.forkserver`, of which only `inference.worker.processes.preload` is ours) has one thread,
no connection, and has computed nothing: what does not outlive a fork is not there yet.

Imported before Django is set up.
"""

import contextlib
import errno
import io
import logging
import os
import signal
import sys
import time
from collections.abc import Iterable
from multiprocessing import forkserver
from types import SimpleNamespace
from typing import Any

from billiard import context, popen_fork, reduction
from billiard.connection import wait
from celery import platforms

from inference.catalog.specs import ModelSpec

logger = logging.getLogger(__name__)

IMPORTS = "FORKSERVER_IMPORTS"  # of the environment: modules, with spaces
HELD = (signal.SIGTERM, signal.SIGHUP)  # of a whole group: the worker lets its batches end first
ENDS_S = 0.1  # until a process that answers no more counts as ended
# Of the process that forks: torchao looks for GPUs as it is imported, and no child could use CUDA if that began there.
NO_GPUS = {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def prepare(specs: Iterable[ModelSpec]) -> None:
    """Start it now, so that it imports while this process gets ready itself.

    An engine of one's own is imported by the children: nobody knows what its module does."""
    modules = {spec.engine.partition(":")[0] for spec in specs if spec.is_built_in}
    os.environ[IMPORTS] = " ".join(sorted(modules))
    forkserver.set_forkserver_preload(["inference.worker.processes.preload"])
    forkserver.ensure_running()


def fail_alone() -> None:
    """In that process: of a request that cannot be served who asked is told the number of the error, in place of a pid.
    As the standard library has it that process would end, and all replicas with it."""
    module: Any = forkserver
    recvfds, received = module.reduction.recvfds, list[int]()

    def receive(*arguments: Any) -> list[int]:
        try:
            received[:] = recvfds(*arguments)
        except (EOFError, RuntimeError, AssertionError) as error:  # who asked has none to send, or is gone
            raise OSError(errno.ECONNABORTED, repr(error)) from error
        return list(received)

    def fork() -> int:
        try:
            return os.fork()
        except OSError as error:
            with contextlib.suppress(BrokenPipeError):
                forkserver.write_signed(received[1], -(error.errno or errno.EAGAIN))
            for fd in received:
                os.close(fd)
            raise OSError(errno.ECONNABORTED, repr(error)) from error

    module.os = SimpleNamespace(**{**vars(os), "fork": fork})
    module.reduction = SimpleNamespace(**{**vars(module.reduction), "recvfds": receive})


class ForkedProcess(context.SpawnProcess):
    """What is sent to it is pickled, as to one that is spawned."""

    @staticmethod
    def _Popen(process: Any) -> Any:
        return Popen(process)


class Inherited:
    """A file descriptor that travels beside the pickle, by its place."""

    def __init__(self, place: int) -> None:
        self.place = place

    def detach(self) -> int:
        return (forkserver.get_inherited_fds() or [])[self.place]


class Started:
    """What the standard library's child runs: a process of billiard, in the environment of its starter."""

    parent: int  # the process that forks, as its children have it

    def __init__(self, process: Any) -> None:
        self.process = process
        self.environment = dict(os.environ)

    def _bootstrap(self, parent_sentinel: int) -> int:
        platforms.set_pdeathsig("SIGKILL")  # type: ignore[attr-defined]
        if os.getppid() != self.parent:  # it was killed before that, and its starter takes this process for dead
            return os.EX_SOFTWARE
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
        os.close(parent_sentinel)
        for name in NO_GPUS:
            os.environ.pop(name, None)
        os.environ.update(self.environment)
        return int(self.process._bootstrap())


class Popen(popen_fork.Popen):
    """`sentinel` tells the child's pid, and later its exit code: it is no child of this process."""

    method = "forkserver"
    DupFd = Inherited
    sentinel: Any

    def __init__(self, process: Any) -> None:
        self._fds: list[int] = []
        super().__init__(process)

    def duplicate_for_child(self, fd: int) -> int:
        self._fds.append(fd)
        return len(self._fds) - 1

    def _launch(self, process: Any) -> None:
        pickled = io.BytesIO()
        context.set_spawning_popen(self)  # type: ignore[attr-defined]
        try:
            reduction.dump({"name": process.name, "sys_path": sys.path, "sys_argv": sys.argv}, pickled)
            reduction.dump(Started(process), pickled)
        finally:
            context.set_spawning_popen(None)  # type: ignore[attr-defined]
        try:
            self._fork(pickled)
        except (ConnectionError, EOFError) as error:  # it has just ended: once more, by another one
            logger.error("the process that replicas are forked from has ended, another one is started: %r", error)
            time.sleep(ENDS_S)
            self._fork(pickled)

    def _fork(self, pickled: io.BytesIO) -> None:
        """Raises the `OSError` that the fork failed with, and `ConnectionError` or `EOFError` where nobody forks."""
        self.sentinel, write_to = forkserver.connect_to_new_process(self._fds)
        try:
            with contextlib.suppress(BrokenPipeError), open(write_to, "wb") as child:
                child.write(pickled.getbuffer())
            self.pid = forkserver.read_signed(self.sentinel)
            if self.pid < 0:
                raise OSError(-self.pid, os.strerror(-self.pid))
        except (OSError, EOFError):
            self.close()
            raise

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        if self.returncode is None and wait([self.sentinel], 0 if flag == os.WNOHANG else None):
            try:
                self.returncode = forkserver.read_signed(self.sentinel)
            except (OSError, EOFError):
                logger.error("pid=%d was killed with the process that it was forked from", self.pid)
                self.returncode = -signal.SIGKILL
        return self.returncode
