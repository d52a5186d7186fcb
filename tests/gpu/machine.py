"""What the cases run on: a GPU, or a stand-in for one on a CPU, with which CI knows that they work and can fail."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from inference.engines.runtime import engine_calls
from inference.worker.replicas import gpus
from tests.conditions import PATIENCE_S

LISTING = "GPU 0: A stand-in (UUID: GPU-0000-1)\n"
TOOLS = {
    "listing": 'case $1 in -L) cat "{folder}/listing";; *) echo "GPU-0000-1, 81559";; esac',
    "failing": "exit 9",
    "hanging": "exec sleep 60",
}


class Failed(Exception):
    """A case has found what must not be; the message says it with its figures."""


def expect(holds: bool, problem: str) -> None:
    if not holds:
        raise Failed(problem)


class Machine:
    """A GPU, the first that there is. With `broken`, what the case looks for is put in where its code says how."""

    device = "cuda:0"
    is_stand_in = False
    devices = "auto"  # of a worker

    def __init__(self, *, broken: bool = False) -> None:
        self.broken = broken

    @contextlib.contextmanager
    def host(self, tool: str = "") -> Iterator[None]:
        """As it is, or with an nvidia-smi that is missing, failing or hanging."""
        with contextlib.ExitStack() as stack:
            if tool:
                stack.enter_context(_with_tool(tool))
            if self.broken:
                stack.enter_context(patch.object(gpus, "DEVICE_FILES", "/nowhere"))
                stack.enter_context(_with_tool("missing"))
            yield

    def described(self) -> str:
        import torch

        found = torch.cuda.get_device_properties(0)
        return (
            f"{found.name}, {found.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}, torch {torch.__version__}"
        )

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()

    def is_busy(self) -> bool:
        import torch

        return not torch.cuda.current_stream().query()

    def reserved(self) -> int:
        """Bytes that this process holds."""
        import torch

        return int(torch.cuda.memory_reserved())

    def encoders(self) -> contextlib.AbstractContextManager[Any]:
        """With what shortcuts through a text encoder use of CUDA."""
        return contextlib.nullcontext()

    def free(self) -> int:
        """Bytes of the device that nobody holds."""
        import torch

        return int(torch.cuda.mem_get_info()[0])

    def now_s(self) -> float:
        """By the clock that engine calls are measured with."""
        return time.perf_counter()  # on a GPU only

    def measured(self) -> contextlib.AbstractContextManager[Any]:
        """With that clock."""
        return contextlib.nullcontext()

    def patience_s(self, limit_s: float) -> float:
        """Return how long a case waits for what is to come within `limit_s`."""
        return limit_s


class StandIn(Machine):
    """On a CPU, whose speed decides nothing: time is what calls say that they take. `later_s`: work that was begun and
    is not waited for; `held`: bytes."""

    device = "cpu"
    is_stand_in = True
    devices = "cpu"

    def __init__(self, *, broken: bool = False) -> None:
        super().__init__(broken=broken)
        self.spent_s = 0.0  # the time
        self.call_s = 0.0  # that a call takes
        self.later_s = 0.0
        self.held = 0

    @contextlib.contextmanager
    def host(self, tool: str = "listing") -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(_with_tool("missing" if self.broken else tool))
            if not self.broken:
                Path(folder, "nvidia0").touch()
            stack.enter_context(patch.object(gpus, "DEVICE_FILES", f"{folder}/nvidia[0-9]*"))
            stack.enter_context(patch.object(gpus, "LISTING_S", 0.5 if tool == "hanging" else PATIENCE_S))
            stack.enter_context(patch.object(gpus, "_read_torch_version", return_value="2.13.0"))
            yield

    def described(self) -> str:
        return "a stand-in for a GPU, on a CPU"

    def synchronize(self) -> None:
        later_s, self.later_s = self.later_s, 0.0
        self.spend(later_s)

    def spend(self, seconds: float) -> None:
        self.spent_s += seconds

    def now_s(self) -> float:
        return self.spent_s

    def measured(self) -> contextlib.AbstractContextManager[Any]:
        return patch.object(engine_calls, "time", SimpleNamespace(perf_counter=self.now_s))

    def patience_s(self, limit_s: float) -> float:
        return 0.5 if self.broken else PATIENCE_S  # what never comes need not be waited for

    def is_busy(self) -> bool:
        return self.later_s > 0

    def reserved(self) -> int:
        return self.held

    @contextlib.contextmanager
    def encoders(self) -> Iterator[None]:
        from tests import cuda_encoders

        with cuda_encoders.graphs(), cuda_encoders.flash_attention():
            yield

    def free(self) -> int:
        return 0


@contextlib.contextmanager
def _with_tool(kind: str) -> Iterator[str]:
    """In a PATH that has this nvidia-smi, or none."""
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, PATH=folder):
        Path(folder, "listing").write_text(LISTING)
        if kind in TOOLS:
            tool = Path(folder, "nvidia-smi")
            tool.write_text(f"#!/bin/sh\nPATH=/bin:/usr/bin\n{TOOLS[kind].replace('{folder}', folder)}\n")
            tool.chmod(0o755)
        yield folder


def engine(machine: Machine, **values: Any) -> Any:
    """Of a model's table, ready on the machine's device."""
    from inference.catalog.specs import ModelSpec
    from inference.engines import loading

    return loading.load_engine(ModelSpec(name="m", **values), machine.device)
