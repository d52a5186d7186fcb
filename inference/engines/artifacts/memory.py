"""The memory of a device, and the part of it that a model takes.

That part is estimated from the model's files, and measured as it is loaded.
"""

import contextlib
import ctypes
import gc
import json
import logging
import math
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inference.catalog.specs import ModelSpec
from inference.engines.artifacts import weights

logger = logging.getLogger(__name__)

CPU = "cpu"
MIB = 2**20
KEPT = 256 * MIB
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
HIGHEST_MMAP_THRESHOLD = 32 * MIB  # bytes that older versions of glibc take, which refuse more
CONTEXT = 512 * MIB  # bytes of a GPU that a process takes beside what it allocates
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FLOATS = ("F64", "F32", "BF16", "F16")
STATM = Path("/proc/self/statm")
OWN_CGROUPS = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")
LIMITS = ("memory.max", "memory.limit_in_bytes")  # files of control groups of version 2, and 1


# Before a model is loaded


def estimate_weights_memory(spec: ModelSpec) -> int | None:
    """Return the bytes of a model's weights in the dtype in which it is loaded.

    Return None if nothing is known: the files are not here yet, or the engine is a custom one without files.
    """
    try:
        folder = _find_folder(spec)
        return (
            sum(_count_weights_bytes(file, spec.weights_dtype) for file in weights.list_weight_files(folder)) or None
            if folder
            else None
        )
    except Exception as error:  # something is wrong with its files: loading it will report that
        logger.debug("model=%s its files do not show its size: %s", spec.name, error)
        return None


def _find_folder(spec: ModelSpec) -> Path | None:
    """Return the folder of the model's files, which may be in the hub's cache; None if the model has none."""
    found = weights.find_local_folder(spec) if spec.model else None
    if found or not spec.revision:
        return found
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(spec.model, revision=spec.revision, local_files_only=True))


def _count_weights_bytes(file: Path, dtype: str) -> int:
    with file.open("rb") as content:
        size = int.from_bytes(content.read(8), "little")
        header = json.loads(content.read(min(size, weights.MAX_HEADER)))
    return sum(_count_tensor_bytes(tensor, dtype) for name, tensor in header.items() if name != "__metadata__")


def _count_tensor_bytes(tensor: dict[str, Any], dtype: str) -> int:
    if tensor["dtype"] in FLOATS and dtype in BYTES:
        return int(math.prod(tensor["shape"])) * BYTES[dtype]
    begin, end = tensor["data_offsets"]
    return int(end - begin)


# In the process that loads it


class MemoryTaken:
    """The memory that a `with` block took: `bytes` is set once the block has ended."""

    bytes = 0


@contextlib.contextmanager
def measure_memory_taken(spec: ModelSpec, device: str) -> Iterator[MemoryTaken]:
    """Measure the memory that loading a model takes, in bytes.

    On a CPU that is the growth of the process, and at least the size of the weights, as pages of a mapped file come
    later.
    """
    if spec.is_built_in and "transformers.pipelines" not in sys.modules:  # imports that all models share count for none
        gc.disable()  # imported modules stay, and need no collection
        with contextlib.suppress(Exception):  # loading will report it
            import transformers.pipelines  # noqa: F401 - imported for its memory
        gc.freeze()
        gc.enable()
    free_unused_memory()
    before, taken = _read_used_bytes(device), MemoryTaken()
    yield taken
    free_unused_memory()
    taken.bytes = max(_read_used_bytes(device) - before, (estimate_weights_memory(spec) or 0) if device == CPU else 0)


def _read_used_bytes(device: str) -> int:
    """Return the bytes that this process uses, on all its GPUs or of the machine's memory."""
    if device != CPU:
        torch = sys.modules.get("torch")
        return sum(torch.cuda.memory_allocated(one) for one in range(torch.cuda.device_count())) if torch else 0
    resident = read_resident_bytes()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if resident is None else resident  # bytes, on macOS


def read_resident_bytes(pid: int | None = None) -> int | None:
    """Return the bytes of the machine's memory that a process has, or this process; None if that is not known."""
    statm = Path(f"/proc/{pid}/statm") if pid else STATM
    try:
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return None


def free_unused_memory() -> None:
    """Give back the memory that is held for models that are gone."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        with contextlib.suppress(RuntimeError):  # the device is in an error state, which every call to it reports
            torch.cuda.empty_cache()
    with contextlib.suppress(AttributeError, OSError):  # a function of glibc, which keeps freed memory
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory() -> None:
    """Let the process keep up to `KEPT` bytes that a batch frees, for the next batch.

    By default glibc gives most of it back to the system with each batch and takes it again page by page. That is up to
    a tenth of the cost of a batch of 16 texts on a CPU.
    """
    with contextlib.suppress(AttributeError, OSError):  # a function of glibc
        mallopt = ctypes.CDLL(None).mallopt
        if not mallopt(MMAP_THRESHOLD, KEPT):
            mallopt(MMAP_THRESHOLD, HIGHEST_MMAP_THRESHOLD)
        mallopt(TRIM_THRESHOLD, KEPT)


def read_total_memory(device: str) -> int:
    """Return the bytes of memory of the device; 0 for a device that does not report them.

    For a CPU it is the part of the machine's memory that this process may use.
    """
    if device != CPU:
        return sum(_read_gpu_memory())
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_read_cgroup_limits()])


def _read_gpu_memory() -> list[int]:
    """Return the bytes of each GPU that this process has; an empty list if torch finds none, or cannot read them."""
    import torch

    try:
        return [int(torch.cuda.get_device_properties(one).total_memory) for one in range(torch.cuda.device_count())]
    except RuntimeError as error:
        logger.warning("the device does not say how much memory it has: %s", error)
        return []


def limit_memory_to_share(device: str, sharing: int) -> None:
    """Bound this process to its share of a device's memory that `sharing` processes share.

    Memory that one process caches is missing to the others.
    """
    if device == CPU or sharing == 1:
        return
    import torch

    for index, size in enumerate(_read_gpu_memory()):
        with contextlib.suppress(RuntimeError):  # the device is in an error state, which loading will report
            torch.cuda.set_per_process_memory_fraction(max(0.0, 1 / sharing - CONTEXT / size), index)


def _read_cgroup_limits() -> Iterator[int]:
    """Yield the limits in bytes of the control groups that this process is in."""
    lines = OWN_CGROUPS.read_text().splitlines() if OWN_CGROUPS.exists() else []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        root = CGROUPS / "memory" if controllers == "memory" else CGROUPS
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            for file in (folder / name for name in LIMITS):
                if file.is_file() and (limit := file.read_text().strip()).isdigit():
                    yield int(limit)
