"""The start of child processes, by forks of one process that has imported what they need.

A replica is there in a fraction of a second, also after a crash, and replicas share the memory of the libraries.

That process is `multiprocessing.forkserver`, of which only `inference.worker.processes.preload` is this project's. It
has one thread and no connection, and has computed nothing: what does not survive a fork is not there yet.

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

IMPORTS = "FORKSERVER_IMPORTS"  # environment variable: names of modules, with spaces between them
HELD = (signal.SIGTERM, signal.SIGHUP)  # blocked: a whole process group gets them, and the worker's batches end first
ENDS_S = 0.1  # seconds until a process that answers no more counts as ended
# In the process that forks: torchao looks for GPUs as it is imported. No child could use CUDA if CUDA began there.
NO_GPUS = {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def prepare(specs: Iterable[ModelSpec]) -> None:
    """Start the process that forks, so that it imports while this process gets ready itself.

    A user's own engine is imported by the children, as it is not known what its module does.
    """
    modules = {spec.engine.partition(":")[0] for spec in specs if spec.is_built_in}
    os.environ[IMPORTS] = " ".join(sorted(modules))
    forkserver.set_forkserver_preload(["inference.worker.processes.preload"])
    forkserver.ensure_running()


def survive_failed_forks() -> None:
    """Make this process, the one that forks, survive a request that it cannot serve.

    The process that asked gets the number of the error in place of a pid. With the standard library alone this process
    would end, and all replicas with it.
    """
    module: Any = forkserver
    recvfds, received = module.reduction.recvfds, list[int]()

    def receive(*arguments: Any) -> list[int]:
        try:
            received[:] = recvfds(*arguments)
        except (EOFError, RuntimeError, AssertionError) as error:  # the asker has none to send, or is gone
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
    """A child process that the module's process forks. It is sent pickled, as one that is spawned."""

    @staticmethod
    def _Popen(process: Any) -> Any:
        return Popen(process)


class Inherited:
    """A file descriptor that is sent beside the pickle, and known by its place there."""

    def __init__(self, place: int) -> None:
        self.place = place

    def detach(self) -> int:
        return (forkserver.get_inherited_fds() or [])[self.place]


class Started:
    """The object that the standard library's child runs: a process of billiard, in the environment of its starter."""

    parent: int  # pid of the process that forks, as its children inherit it

    def __init__(self, process: Any) -> None:
        self.process = process
        self.environment = dict(os.environ)

    def _bootstrap(self, parent_sentinel: int) -> int:
        platforms.set_pdeathsig("SIGKILL")  # type: ignore[attr-defined]
        if os.getppid() != self.parent:  # it was killed before that, and the starter takes this process for dead
            return os.EX_SOFTWARE
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
        os.close(parent_sentinel)
        for name in NO_GPUS:
            os.environ.pop(name, None)
        os.environ.update(self.environment)
        return int(self.process._bootstrap())


class Popen(popen_fork.Popen):
    """A handle of a forked process, which is no child of this process.

    `sentinel` is a pipe that brings its pid, and later its exit code.
    """

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
        except (ConnectionError, EOFError) as error:  # the process that forks has just ended: try again by another one
            logger.error("the process that replicas are forked from has ended, another one is started: %r", error)
            time.sleep(ENDS_S)
            self._fork(pickled)

    def _fork(self, pickled: io.BytesIO) -> None:
        """Have a child forked, and send it the pickle.

        Raises the `OSError` that the fork failed with, and `ConnectionError` or `EOFError` if the process that forks is
        gone.
        """
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
