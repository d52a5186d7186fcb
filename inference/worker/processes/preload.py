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

import django  # noqa: E402 - the collector is off
import uuid_utils  # noqa: E402 - the collector is off

from inference.worker.replicas import devices  # noqa: E402 - the collector is off

os.environ.update(devices.NO_GPUS)
django.setup()

from inference.worker.child import process  # noqa: E402 - Django is set up
from inference.worker.processes import process_launcher  # noqa: E402 - Django is set up

# A whole process group gets these signals, which would end this process. It ends with the worker's main process.
signal.pthread_sigmask(signal.SIG_BLOCK, process.IGNORED)
for module in os.environ[process_launcher.IMPORTS].split():
    with contextlib.suppress(Exception):  # the load of a model reports what is missing
        importlib.import_module(module)
os.register_at_fork(after_in_child=uuid_utils.reseed_rng)  # Python's own generator does so by itself
if torch := sys.modules.get("torch"):
    os.register_at_fork(after_in_child=torch.default_generator.seed)
    os.register_at_fork(after_in_child=sys.modules["numpy"].random.seed)
gc.freeze()
gc.enable()
