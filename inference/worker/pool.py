"""The prefork pool, told apart by replica: it says when one becomes idle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.concurrency import prefork
from celery.concurrency.asynpool import AsynPool


def _nobody() -> None:
    """Until a consumer listens."""


class ReplicaPool(AsynPool):
    """Calls `on_idle` when a replica has loaded its models, and when it has finished a call.

    The pool's semaphore counts children that still load, or that died: a call bound to one of them would wait for a
    model to load while another replica is idle.
    """

    on_idle: Callable[[], None] = staticmethod(_nobody)

    def on_process_alive(self, pid: int) -> None:
        super().on_process_alive(pid)
        self.on_idle()

    def on_job_ready(self, job: Any, i: Any, obj: Any, inqW_fd: int) -> None:
        super().on_job_ready(job, i, obj, inqW_fd)
        self.on_idle()

    def flush(self) -> None:
        """Celery forgets every call that no child has accepted. A child that has read one still runs it, and would
        wait for 30 s at its end for somebody to take the result: those calls are kept."""
        begun = [job for job in self._cache.values() if job._write_to is not None and not job._accepted]
        for job in begun:
            job._accepted = True
        super().flush()
        for job in begun:
            job._accepted = job._worker_pid is not None
            if not job._accepted and not job._write_to._is_alive():
                job.discard()

    @property
    def ready(self) -> int:
        """Replicas that have loaded their models."""
        return len(self._all_inqueues)

    @property
    def busy(self) -> int:
        return len(self._busy_workers)

    @property
    def idle(self) -> int:
        """Replicas that would start a call at once."""
        return self.ready - self.busy - len(self.outbound_buffer)


class TaskPool(prefork.TaskPool):
    Pool = ReplicaPool
