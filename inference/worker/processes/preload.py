"""The imports of the process that child processes are forked from, before the first fork.

Nothing here may start a thread, open a connection or touch a device.
"""

import contextlib
import gc
import importlib
import os
import signal
import sys

gc.disable()  # imported modules stay: looking for garbage in them takes longer than loading a small model

import django  # noqa: E402
import uuid_utils  # noqa: E402
from celery import platforms  # noqa: E402

from inference.worker.processes import forkserver  # noqa: E402

platforms.set_pdeathsig("SIGKILL")  # type: ignore[attr-defined] # ends with the worker's main process
signal.pthread_sigmask(signal.SIG_BLOCK, forkserver.HELD)
forkserver.survive_failed_forks()
forkserver.Started.parent = os.getpid()
os.environ.update(forkserver.NO_GPUS)

django.setup()
for module in ("celery.app.trace", "inference.worker.child.entry", *os.environ[forkserver.IMPORTS].split()):
    with contextlib.suppress(Exception):  # the load of a model reports what is missing
        importlib.import_module(module)
os.register_at_fork(after_in_child=uuid_utils.reseed_rng)  # Python's own generator does so by itself
if torch := sys.modules.get("torch"):
    os.register_at_fork(after_in_child=torch.default_generator.seed)
    os.register_at_fork(after_in_child=sys.modules["numpy"].random.seed)
gc.freeze()
gc.enable()
