"""The device of each replica: `--devices auto|cpu|cuda:0,cuda:1`.

The main process decides this, without torch.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from inference.worker.replicas import gpus
from inference.worker.replicas.gpus import Device, FoundGpus

logger = logging.getLogger(__name__)

CPU = "cpu"
ALLOCATION = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}  # the allocator's settings: today's name and the last
# In the process that others are forked from: torchao looks for GPUs as it is imported, and no child could use CUDA if
# CUDA began there.
NO_GPUS = {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
SPIN_COUNT = "10000"  # looks for work, about 0.1 ms: 50,000 gain no more, and 1,000 lose a third of what is gained
SPINNING = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}  # how long threads of OpenMP wait without giving their core away
NAME = re.compile(r"cpu|cuda:\d+(\+cuda:\d+)*")
LONGEST_NAME = 20  # characters of a name on a job's row
AMPLE, READERS = 8, 4  # a replica with this many cores or more, and the threads in which its tokenizer reads then
MOST_REPLICAS = 4  # replicas of a GPU: the other three compute in the gaps of one
CONTEXT = 2**30  # bytes that a process takes of a GPU before it has loaded anything, and for kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSelection:
    """The devices of a worker, and why these were chosen."""

    devices: tuple[Device, ...]
    why: str

    @property
    def is_cpu(self) -> bool:
        return all(device.name == CPU for device in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The devices and replicas of a worker, for as long as it lives.

    Child i runs on device i mod n, with `threads` torch threads.
    """

    worker: UUID
    devices: tuple[str, ...]  # their names on the host
    replicas: int
    threads: int
    visible: tuple[str, ...] = ()  # of each device: its value of CUDA_VISIBLE_DEVICES
    why: str = ""
    ahead: bool | None = None  # whether the next batches are claimed while one computes; None: not on a CPU

    def works_ahead(self, index: int) -> bool:
        """Return True if the child of this index works ahead.

        Nothing is gained by it on a CPU: the work is the same, and batches would be smaller.
        """
        return self.get_device(index) != CPU if self.ahead is None else self.ahead

    def get_device(self, index: int) -> str:
        return self.devices[index % len(self.devices)]

    @property
    def most_replicas_per_device(self) -> int:
        """The number of replicas on the CPU or GPU that has most of them: several devices may name the same one."""
        every = [
            (seen or name).split(",") for name, seen in zip(self.devices, self.visible or self.devices, strict=True)
        ]
        parts = (part for index in range(self.replicas) for part in every[index % len(every)])
        return max(Counter(parts).values())

    def bind_device(self, index: int) -> str:
        """Hide the other devices from this process before torch looks for them, and return its own device's name."""
        return hide_other_gpus(self.visible[index % len(self.visible)] if self.visible else "")


def hide_other_gpus(visible: str) -> str:
    """Hide all GPUs that are not in `visible`, as `Plan.bind_device` does.

    Of several GPUs that are one device, it returns the name of the first.
    """
    os.environ[gpus.VARIABLE] = visible
    os.environ.setdefault(gpus.ORDER, gpus.BY_BUS)
    return "cuda:0" if visible else CPU


def set_up_libraries(threads: int, *, is_cpu: bool = True) -> None:
    """Set the environment variables that a replica's libraries read as they are imported.

    They are imported in this process, or in one that it starts.

    A tokenizer reads a batch in several threads if the replica is on a GPU and has so many cores that some are idle.
    The work is not less in several threads, and if no core is idle a batch waits for all of them.

    The threads of OpenMP look for work for a tenth of a millisecond before they sleep, as long as the next part of a
    model takes to begin. Their core may be another replica's.
    """
    if not SPINNING & os.environ.keys():
        os.environ.update(GOMP_SPINCOUNT=SPIN_COUNT)
    os.environ.update(OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
    readers = READERS if not is_cpu and threads >= AMPLE else 1
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true" if readers > 1 else "false")
    os.environ.setdefault("RAYON_NUM_THREADS", str(readers))
    if not ALLOCATION & os.environ.keys():
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"  # else varying shapes fragment a GPU's memory


def choose_devices(option: str) -> DeviceSelection:
    """Return the devices that `--devices` asks for, and log them.

    Raises `ValueError`, which says what would be right.
    """
    names = [part.strip() for part in option.split(",")]
    for name in names if option != "auto" else ():
        if not NAME.fullmatch(name):
            raise ValueError(
                f"--devices {option}: {name!r} is not a device; use auto, cpu, or a list such as cuda:0,cuda:1,"
                " with + between those that one replica is to have together"
            )
    if set(names) == {CPU}:
        choice = DeviceSelection(devices=(Device(name=CPU),) * len(names), why="it was asked for")
    else:
        choice = _choose_gpus(option, names, gpus.find_gpus())
    logger.info("devices: %s; %s", ", ".join(device.name for device in choice.devices), choice.why)
    return choice


def _choose_gpus(option: str, names: Sequence[str], found: FoundGpus) -> DeviceSelection:
    if option == "auto":
        if found.problem:
            logger.error("no GPU is used, though there should be one: %s. --devices cpu asks for the CPU", found.why)
        return DeviceSelection(devices=found.gpus or (Device(name=CPU),), why=found.why)
    return DeviceSelection(
        devices=tuple(_parse_device(option, name, found) for name in names), why=f"it was asked for; {found.why}"
    )


def _parse_device(option: str, name: str, found: FoundGpus) -> Device:
    """Return the device of this name, whose numbers count the GPUs that this worker may use.

    Raises `ValueError` if one of them is not there.
    """
    if name == CPU:
        return Device(name=CPU)
    numbers = [int(part.removeprefix("cuda:")) for part in name.split("+")]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"--devices {option}: {name} names a GPU twice")
    if max(numbers) >= len(found.gpus):
        can = f"{len(found.gpus) or 'none'} can be used here: {found.why}"
        if not found.is_listed:
            can += f". If there is one all the same, name it: {gpus.VARIABLE}={max(numbers)}"
        raise ValueError(f"--devices {option}: there is no cuda:{max(numbers)}, {can}")
    parts = [found.gpus[number] for number in numbers]
    if len(parts) > 1 and any(part.is_slice for part in parts):
        raise ValueError(f"--devices {option}: {name} has a slice of a GPU (MIG), and CUDA sees one of those at a time")
    name = "+".join(part.name for part in parts)
    memory = sum(part.memory for part in parts) if all(part.memory for part in parts) else 0
    return Device(name=name, visible=",".join(part.visible for part in parts), memory=memory)


def truncate_device_name(name: str) -> str:
    """Return a device's name, cut to the room that a job's row has for it."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def make_plan(
    *,
    worker: UUID,
    choice: DeviceSelection,
    concurrency: int | None,
    sizes: Iterable[int | None] = (),
    most: int = MOST_REPLICAS,
) -> Plan:
    """Plan the replicas of a worker.

    `sizes` are the bytes of the models that every replica has, and a GPU has at most `most` replicas. A CPU has one
    replica a core, with one thread each: on two cores that ran 132 items/s, against 80 to 102 of one replica with two
    threads.
    """
    names = tuple(device.name for device in choice.devices)
    replicas = concurrency or (
        count_cores() if names == (CPU,) else len(names) * _count_replicas_each(choice, sizes, most)
    )
    threads = max(1, min(count_cores() // replicas, _read_allowed_threads()))
    visible = tuple(device.visible for device in choice.devices)
    return Plan(worker=worker, devices=names, replicas=replicas, threads=threads, visible=visible, why=choice.why)


def _count_replicas_each(choice: DeviceSelection, sizes: Iterable[int | None], most: int) -> int:
    """Return how many replicas each device has: as many as the device that has room for fewest.

    All devices have the same number, as child i is on device i mod n.
    """
    taken = list(sizes)
    each = min(count_replicas_that_fit(device.memory, taken) for device in choice.devices)
    parts = Counter(part for device in choice.devices for part in device.visible.split(",") if part)
    named = max(parts.values(), default=1)  # how many times the devices name one GPU, at most
    return max(1, min(min(each, most) // named, count_cores() // len(choice.devices)))


def count_replicas_that_fit(memory: int, sizes: Sequence[int | None]) -> int:
    """Return how many replicas share a GPU of `memory` bytes.

    At most half of the memory is for their models and contexts, the rest is for what they compute. There is one replica
    if a size is not known.
    """
    known = [size for size in sizes if size is not None]
    if not memory or len(known) < len(sizes):
        return 1
    return max(1, min(MOST_REPLICAS, memory // 2 // (CONTEXT + sum(known))))


def _read_allowed_threads() -> int:
    """Return the threads that OMP_NUM_THREADS allows, of which the first number counts; else all cores."""
    most = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(most) if most.isdecimal() else count_cores()


def count_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
