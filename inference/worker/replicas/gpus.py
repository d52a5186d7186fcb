"""The GPUs that this process may use, found without torch.

CUDA_VISIBLE_DEVICES is read as CUDA reads it.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import subprocess
from dataclasses import dataclass
from importlib import metadata

MIB, GB = 2**20, 10**9
DEVICE_FILES = "/dev/nvidia[0-9]*"
LISTING_S = 30.0  # seconds for nvidia-smi to answer: the driver may have to wake all GPUs
ENDED_S = 1.0  # seconds for a killed nvidia-smi to end: one that is stuck in the driver does not
VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER, BY_BUS = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"  # nvidia-smi's order; by default CUDA begins with the fastest
HIDE_ALL = {"", "nodevfiles", "none", "void"}  # values that hide every GPU; so do numbers below 0
_GPU = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[\w-]+)\)")
_SLICE = re.compile(r"\s+MIG \S*?(\d+)gb\S*\s+Device\s+(\d+): \(UUID: (MIG-[\w/-]+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The device that a replica owns: a CPU, a GPU or a slice of one (MIG), or several GPUs."""

    name: str  # its name on this host
    visible: str = ""  # its value of CUDA_VISIBLE_DEVICES
    memory: int = 0  # bytes; 0: unknown

    @property
    def is_slice(self) -> bool:
        return "/mig:" in self.name or self.visible.startswith("MIG-")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGpus:
    """The GPUs that were found, in the order of nvidia-smi or of the environment.

    `problem` is True if a GPU was to be expected and there is none to use.
    """

    gpus: tuple[Device, ...] = ()
    why: str
    problem: bool = False
    is_listed: bool = False  # the driver has listed them: there are no others


def find_gpus() -> FoundGpus:
    """Find the GPUs that this process may use.

    Raises `ValueError` if the environment names GPUs that are not there.
    """
    if (value := os.environ.get(VARIABLE)) is not None and not _parse_visible_devices():
        if value.strip().lower() in HIDE_ALL or value.strip().startswith("-"):
            return FoundGpus(why=f"{VARIABLE} hides every GPU", is_listed=True)
        return _report_none_named()
    if "+cpu" in _read_torch_version():
        is_there = bool(glob.glob(DEVICE_FILES))
        why = "this torch is a build for CPUs" + (", though there is a GPU: install one for CUDA" if is_there else "")
        return FoundGpus(why=why, problem=is_there, is_listed=True)
    found = _find_listed_gpus()
    return found if os.environ.get(VARIABLE) is None else _select_named_gpus(found)


def _read_torch_version() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


# What there is


def _find_listed_gpus() -> FoundGpus:
    try:
        listing = _run_nvidia_smi("-L")
    except (OSError, subprocess.SubprocessError) as error:
        return _find_gpus_by_files(error)
    memory, in_mig_mode = _query_gpus()
    every = _parse_listing(listing, memory)
    if not every and (files := _find_gpus_by_files(None)).gpus:
        return files
    gpus = tuple(gpu for gpu in every if gpu.visible not in in_mig_mode)
    why = "nvidia-smi lists them" if gpus else "nvidia-smi lists no GPU"
    if useless := ", ".join(gpu.name for gpu in every if gpu.visible in in_mig_mode):
        why += f", but for {useless}: in MIG mode without a slice, which CUDA cannot use"
    return FoundGpus(gpus=gpus, why=why, problem=not gpus, is_listed=True)


def _run_nvidia_smi(*options: str) -> str:
    """Run nvidia-smi, and return what it prints.

    Raises `OSError` or `SubprocessError`, also if nvidia-smi does not end when it is killed.
    """
    process = subprocess.Popen(
        ["nvidia-smi", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        errors="replace",
    )
    try:
        output, _ = process.communicate(timeout=LISTING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDED_S)
        raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return output


def _parse_listing(listing: str, memory: dict[str, int]) -> list[Device]:
    """Return the GPUs that `nvidia-smi -L` lists.

    A GPU that is cut into slices can be used in slices only.
    """
    found: dict[str, list[Device]] = {}
    name = ""
    for line in listing.splitlines():
        if match := _GPU.match(line):
            name = f"cuda:{match[1]}"
            found[name] = [Device(name=name, visible=match[2], memory=memory.get(match[2], 0))]
        elif name and (match := _SLICE.match(line)):
            part = Device(name=f"{name}/mig:{match[2]}", visible=match[3], memory=int(match[1]) * GB)
            found[name] = [*(gpu for gpu in found[name] if "/" in gpu.name), part]
    return [gpu for gpus in found.values() for gpu in gpus]


def _query_gpus() -> tuple[dict[str, int], set[str]]:
    """Return the bytes of each GPU that reports them, by UUID, and the GPUs that can be used in slices only."""
    try:
        lines = _run_nvidia_smi(
            "--query-gpu=uuid,memory.total,mig.mode.current", "--format=csv,noheader,nounits"
        ).splitlines()
    except (OSError, subprocess.SubprocessError):
        return {}, set()
    rows = [[field.strip() for field in f"{line},,".split(",")] for line in lines]
    memory = {uuid: int(size) * MIB for uuid, size, *_ in rows if size.isdecimal()}
    return memory, {uuid for uuid, _, mode, *_ in rows if mode == "Enabled"}


def _find_gpus_by_files(why: Exception | None) -> FoundGpus:
    """Count the GPUs by their device files: containers may have GPUs without nvidia-smi."""
    count = len(glob.glob(DEVICE_FILES))
    gpus = tuple(Device(name=f"cuda:{place}", visible=str(place)) for place in range(count))
    if isinstance(why, FileNotFoundError):
        reason = "there is no nvidia-smi"
    elif isinstance(why, subprocess.TimeoutExpired):
        reason = f"nvidia-smi has not answered within {LISTING_S:g} s"
    else:
        reason = f"nvidia-smi lists none ({why})" if why else "nvidia-smi lists none"
    counted = f"{count} are counted at {DEVICE_FILES}"
    return FoundGpus(gpus=gpus, why=f"{reason}, {counted}", problem=not gpus and not isinstance(why, FileNotFoundError))


# Which of them may be used


def _parse_visible_devices() -> list[str]:
    """Return the entries of CUDA_VISIBLE_DEVICES before the first that is no device; none if one is there twice."""
    entries = [part.strip() for part in os.environ.get(VARIABLE, "").split(",")]
    end = next((place for place, entry in enumerate(entries) if not _may_be_device(entry, entries[0])), len(entries))
    numbers = {int(entry) if entry.isdecimal() else entry for entry in entries[:end]}
    return entries[:end] if len(numbers) == end else []


def _may_be_device(entry: str, first: str) -> bool:
    """Return True if an entry may be a device, as CUDA reads it.

    CUDA reads numbers or the beginnings of UUIDs, whichever the first entry is.
    """
    kinds = ("GPU-", "MIG-")
    kind = next((kind for kind in kinds if first.startswith(kind)), "")
    return entry.startswith(kind) if kind else entry.isascii() and entry.isdecimal()


def _report_none_named() -> FoundGpus:
    why = f"{VARIABLE}={os.environ[VARIABLE]} names none, as CUDA reads it"
    return FoundGpus(why=why, problem=True, is_listed=True)


def _select_named_gpus(found: FoundGpus) -> FoundGpus:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names: CUDA ends at the first that is not there."""
    gpus: list[Device] = []
    entries = _parse_visible_devices()
    for entry in entries:
        if (gpu := _find_named_gpu(entry, found)) is None:
            break
        if gpu in gpus:  # both entries are beginnings of one UUID
            return _report_none_named()
        gpus.append(gpu)
    if not gpus:
        raise ValueError(f"{VARIABLE}={os.environ[VARIABLE]} names no GPU of this host ({found.why})")
    why = f"{VARIABLE} names them"
    if entries[0].isdecimal():
        order = os.environ.get(ORDER, BY_BUS)
        why += " by nvidia-smi's numbers" if order == BY_BUS else f" by CUDA's own numbers: {ORDER}={order}"
    if dropped := os.environ[VARIABLE].count(",") + 1 - len(gpus):
        why += f", but for its last {dropped}: CUDA stops at one that is none ({found.why})"
    return FoundGpus(gpus=tuple(gpus), why=why, is_listed=True)


def _find_named_gpu(entry: str, found: FoundGpus) -> Device | None:
    """Return the GPU that an entry means by its number or by the beginning of its UUID; None if there is none.

    The number of a GPU that is cut into slices means the first slice.
    """
    if entry.isdecimal():
        name = f"cuda:{int(entry)}"
        like = [gpu for gpu in found.gpus if gpu.name.partition("/")[0] == name][:1]
    else:
        name = entry[:20]
        like = [gpu for gpu in found.gpus if gpu.visible.startswith(entry)]
    if not found.is_listed:
        return Device(name=name, visible=entry)
    if entry.isdecimal() and like and os.environ.get(ORDER, BY_BUS) != BY_BUS:  # it is not known which one that is
        return Device(name=name, visible=entry, memory=min(gpu.memory for gpu in found.gpus))
    return like[0] if len(like) == 1 else None
