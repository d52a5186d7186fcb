"""Row 14: no room left, in the broker's memory or on the disk. Refused or kept, never half of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from django.db import connections

from inference.broker.address import find_temporary_folder
from tests.faults.backends import REDIS, SQLITE
from tests.faults.fault import Fault
from tests.faults.service import CATALOG, Service
from tests.faults.trial import ANSWER_LIMIT_S, Trial

DISK_MB = 8
ROOM_FOR_MESSAGES = 20_000  # bytes that the broker may still take


class BrokerFull(Fault):
    row, title, ci, full = "14", "broker full: maxmemory", 1, 10
    shares = True
    brokers = (REDIS,)

    def trial(self, trial: Trial) -> None:
        with contextlib.closing(trial.service.redis()) as client:
            used = client.info("memory")["used_memory"]
            with trial.load(per_s=80) as load:
                trial.pause(0.2, 0.6)
                client.config_set("maxmemory", used + ROOM_FOR_MESSAGES)
                trial.pause(2.0, 5.0)
                client.config_set("maxmemory", 0)
                trial.healed()
                trial.pause(0.2, 0.5)
        trial.add(load, refusals=[503], answer_limit_s=ANSWER_LIMIT_S)
        trial.service.restart_ended()


class DiskFull(Fault):
    row, title, ci, full = "14", f"disk full: everything on {DISK_MB} MB", 1, 10
    takes_s = 10.0
    chunk = 5  # the log and the rows of more fill the disk by themselves
    recovery_limit_s = 60.0
    databases, brokers = (SQLITE,), (REDIS,)
    # An engine that writes down its calls fails where the disk is full.
    options = {"models": CATALOG.replace("tests.faults.engines:RecordingEcho", "tests.echo:EchoEngine")}

    def unavailable(self) -> str:
        if reason := super().unavailable():
            return reason
        return not_mountable()

    @contextlib.contextmanager
    def service(self) -> Iterator[Service]:
        with (
            tempfile.TemporaryDirectory(prefix="disk-", dir=find_temporary_folder()) as folder,
            disk_of(DISK_MB, Path(folder)),
        ):
            with mock.patch.object(tempfile, "tempdir", folder):  # the service makes its folder there
                service = self.make()
            with service:
                yield service

    def trial(self, trial: Trial) -> None:
        ballast = trial.service.folder / "ballast"
        with trial.load(per_s=60) as load:
            trial.pause(0.2, 0.6)
            _fill(ballast)
            trial.pause(3.0, 8.0)
            ballast.unlink()
            trial.healed()
            trial.pause(0.2, 0.5)
        trial.add(load, refusals=[503], answer_limit_s=ANSWER_LIMIT_S)
        trial.service.restart_ended()

    def after(self, trial: Trial) -> None:
        with connections[trial.service.alias].cursor() as cursor:
            cursor.execute("PRAGMA integrity_check")
            (found,) = cursor.fetchone()
        trial.expect(found == "ok", f"the database is damaged: {found}")


def not_mountable() -> str:
    """Why no small disk can be had here, or nothing."""
    if os.geteuid() != 0:
        return "only root may mount a tmpfs"
    try:
        with tempfile.TemporaryDirectory() as folder, disk_of(DISK_MB, Path(folder)):
            return ""
    except subprocess.CalledProcessError as error:
        return f"a tmpfs cannot be mounted here: {error.stderr.decode().strip()}"


@contextlib.contextmanager
def disk_of(size_mb: int, folder: Path) -> Iterator[None]:
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=0700", "tmpfs", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _fill(file: Path) -> None:
    """Take all that is left."""
    with contextlib.suppress(OSError), open(file, "wb", buffering=0) as ballast:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while ballast.write(b"\0" * size):
                    pass
