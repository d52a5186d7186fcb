"""Which device each replica has: `--devices auto|cpu|cuda:0,cuda:1`, decided in the main process without torch."""

import glob
import logging
import os
import re
import subprocess
from dataclasses import dataclass
from itertools import takewhile
from uuid import UUID

logger = logging.getLogger(__name__)

CPU = "cpu"
DEVICE_FILES = "/dev/nvidia[0-9]*"
LISTING_S = 30.0  # the driver may have to wake all GPUs
NAME = re.compile(r"cpu|cuda:\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """On what a worker runs, for as long as it lives: child i on device i mod n, with `threads` torch threads."""

    worker: UUID
    devices: tuple[str, ...]
    replicas: int
    threads: int

    def device_of(self, index: int) -> str:
        return self.devices[index % len(self.devices)]

    def bind(self, index: int) -> str:
        """Hide the other devices from this process, before torch is imported; the name of the own one in it."""
        device = self.device_of(index)
        os.environ["CUDA_VISIBLE_DEVICES"] = "" if device == CPU else _physical(int(device.removeprefix("cuda:")))
        return CPU if device == CPU else "cuda:0"


def limit_threads(threads: int) -> None:
    """Of a replica's libraries, which read it as they are imported: in this process, or in one that it starts."""
    os.environ.update(OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads), TOKENIZERS_PARALLELISM="false")


def parse(option: str) -> tuple[str, ...]:
    """Raises `ValueError` with what would be right."""
    if option == "auto":
        return tuple(f"cuda:{index}" for index in range(cuda_count())) or (CPU,)
    names = tuple(part.strip() for part in option.split(","))
    for name in names:
        if not NAME.fullmatch(name):
            raise ValueError(
                f"--devices {option}: {name!r} is not a device; use auto, cpu, or a list such as cuda:0,cuda:1"
            )
    return names


def make_plan(*, worker: UUID, devices: tuple[str, ...], concurrency: int | None) -> Plan:
    """One replica a GPU. On CPUs one a core with one thread each: on two cores that ran 132 items/s against 80 to 102
    of one replica with two threads."""
    replicas = concurrency or (cores() if devices == (CPU,) else len(devices))
    threads = max(1, min(cores() // replicas, _allowed_threads()))
    return Plan(worker=worker, devices=devices, replicas=replicas, threads=threads)


def _allowed_threads() -> int:
    """By OMP_NUM_THREADS, of which the first number counts."""
    most = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(most) if most.isdecimal() else cores()


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _physical(index: int) -> str:
    """What CUDA_VISIBLE_DEVICES calls the device that is number `index` here."""
    visible = _visible() or []
    return visible[index] if index < len(visible) else str(index)


def _visible() -> list[str] | None:
    """What CUDA_VISIBLE_DEVICES names, when it is set. CUDA stops at the first entry that is no device."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return None
    return list(takewhile(lambda part: part not in ("", "-1"), (part.strip() for part in named.split(","))))


def cuda_count() -> int:
    """GPUs of this machine, without importing torch."""
    if (visible := _visible()) is not None:
        return len(visible)
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=LISTING_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return _count_files(error)
    return listing.stdout.count("GPU ")


def _count_files(why: Exception) -> int:
    """Containers may have GPUs without nvidia-smi."""
    count = len(glob.glob(DEVICE_FILES))
    is_expected = isinstance(why, FileNotFoundError) and not count
    logger.log(
        logging.INFO if is_expected else logging.WARNING, "nvidia-smi lists no GPUs (%s): %d are counted at %s, else"
        " the CPU is used; --devices says it for certain", why, count, DEVICE_FILES,
    )  # fmt: skip
    return count
