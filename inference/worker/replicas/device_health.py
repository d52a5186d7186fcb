"""The health of devices: one that fails with jobs that others compute afterwards is given no calls for a while.

A job that breaks each device that it runs on fails itself, and counts against no device.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from inference.connection_retries import Backoff

logger = logging.getLogger(__name__)

FAULTS = 2  # faults of its own after which a device is withdrawn
TRUSTED_AFTER = 50  # batches in a row without a fault, after which a device's faults are forgotten
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 600.0


@dataclass(slots=True, eq=False)
class Incident:
    """A batch that a device failed with. It was the device's own fault if all its jobs are computed later."""

    device: str
    jobs: int  # jobs that have not been computed yet

    def note_faulty_job(self) -> None:
        """Note that one of its jobs breaks devices."""
        self.jobs = -1


@dataclass(slots=True)
class _Record:
    faults: int = 0
    computed: int = 0
    until: float = 0.0  # monotonic: when the device may be given calls again
    backoff: Backoff = field(default_factory=lambda: Backoff(first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S))


class DeviceHealth:
    """The faults of each device, and for how long it is withdrawn.

    A device is not withdrawn if no other one computes what it does. `computes` returns True if the first device has
    what is run on the second.
    """

    def __init__(self, devices: Sequence[str], computes: Callable[[str, str], bool]) -> None:
        self._records = {device: _Record() for device in devices}
        self._computes = computes

    def note_success(self, device: str) -> None:
        """Note that a device has computed a batch without a fault."""
        record = self._records[device]
        record.computed += 1
        if record.computed >= TRUSTED_AFTER:
            record.faults = 0
            record.backoff.reset()

    def note_success_elsewhere(self, incident: Incident) -> None:
        """Note that a job of an incident was computed in another process, be it to an error of its own."""
        incident.jobs -= 1
        if incident.jobs == 0:
            self._note_fault(incident.device)

    def _note_fault(self, device: str) -> None:
        record = self._records[device]
        record.faults += 1
        record.computed = 0
        if record.faults >= FAULTS and self._others_compute(device):
            pause_s = record.backoff.take_next_pause_s()
            record.until = time.monotonic() + pause_s
            logger.error(
                "%s is given no work for %.0f s: %d batches failed there that other processes computed",
                device,
                pause_s,
                record.faults,
            )

    def compute_withdrawn_s(self, device: str) -> float:
        """Return for how many more seconds a device is withdrawn; 0 if it is not."""
        left_s = self._compute_left_s(device)
        return left_s if left_s and self._others_compute(device) else 0.0

    def _compute_left_s(self, device: str) -> float:
        return max(0.0, self._records[device].until - time.monotonic()) if device in self._records else 0.0

    def _others_compute(self, device: str) -> bool:
        others = (other for other in self._records if other != device and not self._compute_left_s(other))
        return any(self._computes(other, device) for other in others)
