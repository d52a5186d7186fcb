"""What a model takes of its device's memory: estimated from its files, measured as it is loaded. And what there is."""

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
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
HIGHEST_MMAP_THRESHOLD = 32 * MIB  # of older ones, which refuse a higher one
CONTEXT = 512 * MIB  # of a GPU, that a process takes beside what it allocates
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FLOATS = ("F64", "F32", "BF16", "F16")
STATM = Path("/proc/self/statm")
OWN_CGROUPS = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")
LIMITS = ("memory.max", "memory.limit_in_bytes")  # of version 2, and 1


# Before a model is loaded


def estimate(spec: ModelSpec) -> int | None:
    """Bytes of its weights in the dtype that it is loaded in. None where nothing is known: its files are not here yet,
    or an engine of one's own has none."""
    try:
        folder = _folder(spec)
        return sum(_weights(file, spec.torch_dtype) for file in weights.files(folder)) or None if folder else None
    except Exception as error:  # whatever is wrong with its files: loading it will say so
        logger.debug("model=%s its files do not show its size: %s", spec.name, error)
        return None


def _folder(spec: ModelSpec) -> Path | None:
    """Also of the hub's cache."""
    found = weights.local(spec) if spec.model else None
    if found or not spec.revision:
        return found
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(spec.model, revision=spec.revision, local_files_only=True))


def _weights(file: Path, dtype: str) -> int:
    with file.open("rb") as content:
        size = int.from_bytes(content.read(8), "little")
        header = json.loads(content.read(min(size, weights.MAX_HEADER)))
    return sum(_tensor(tensor, dtype) for name, tensor in header.items() if name != "__metadata__")


def _tensor(tensor: dict[str, Any], dtype: str) -> int:
    if tensor["dtype"] in FLOATS and dtype in BYTES:
        return int(math.prod(tensor["shape"])) * BYTES[dtype]
    begin, end = tensor["data_offsets"]
    return int(end - begin)


# In the process that loads it


class Taken:
    """What a block took, once it has ended: `bytes`."""

    bytes = 0


@contextlib.contextmanager
def measured(spec: ModelSpec, device: str) -> Iterator[Taken]:
    """On a CPU by how much the process grew, and at least its weights, of which a mapped file's pages come later."""
    if spec.is_built_in and "transformers.pipelines" not in sys.modules:  # what all of them share is none's
        gc.disable()  # what is imported stays
        with contextlib.suppress(Exception):  # loading will say so
            import transformers.pipelines  # noqa: F401
        gc.freeze()
        gc.enable()
    free()
    before, taken = _used(device), Taken()
    yield taken
    free()
    taken.bytes = max(_used(device) - before, (estimate(spec) or 0) if device == CPU else 0)


def _used(device: str) -> int:
    """Bytes, by this process; of all GPUs that it has."""
    if device != CPU:
        torch = sys.modules.get("torch")
        return sum(torch.cuda.memory_allocated(one) for one in range(torch.cuda.device_count())) if torch else 0
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes, on macOS


def free() -> None:
    """Give back what is held for models that are gone."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        with contextlib.suppress(RuntimeError):  # of a device in an error state, which every call to it tells
            torch.cuda.empty_cache()
    with contextlib.suppress(AttributeError, OSError):  # of glibc, which keeps what was freed
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed() -> None:
    """What one batch frees the next one takes, up to `KEPT` bytes. As glibc has it, most goes back to the system with
    each batch and comes again page by page, which is up to a tenth of what a batch of 16 texts costs on a CPU."""
    with contextlib.suppress(AttributeError, OSError):  # of glibc
        mallopt = ctypes.CDLL(None).mallopt
        if not mallopt(MMAP_THRESHOLD, KEPT):
            mallopt(MMAP_THRESHOLD, HIGHEST_MMAP_THRESHOLD)
        mallopt(TRIM_THRESHOLD, KEPT)


def total(device: str) -> int:
    """Bytes that the device has, of a machine's memory what this process may use; 0 of a device that does not say."""
    if device != CPU:
        return sum(_gpus())
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_limits()])


def _gpus() -> list[int]:
    """Bytes of each GPU that this process has; none where torch has none, or cannot say."""
    import torch

    try:
        return [int(torch.cuda.get_device_properties(one).total_memory) for one in range(torch.cuda.device_count())]
    except RuntimeError as error:
        logger.warning("the device does not say how much memory it has: %s", error)
        return []


def keep_to_share(device: str, sharing: int) -> None:
    """One of so many processes that share the device's memory: what one caches is missing to the others."""
    if device == CPU or sharing == 1:
        return
    import torch

    for index, size in enumerate(_gpus()):
        with contextlib.suppress(RuntimeError):  # of a device in an error state, which loading tells
            torch.cuda.set_per_process_memory_fraction(max(0.0, 1 / sharing - CONTEXT / size), index)


def _limits() -> Iterator[int]:
    """Of the control groups that this process is in."""
    lines = OWN_CGROUPS.read_text().splitlines() if OWN_CGROUPS.exists() else []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        root = CGROUPS / "memory" if controllers == "memory" else CGROUPS
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            for file in (folder / name for name in LIMITS):
                if file.is_file() and (limit := file.read_text().strip()).isdigit():
                    yield int(limit)
