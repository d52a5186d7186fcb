"""The pool of a worker that serves models, as Celery knows it.

It is imported before Django is set up.
"""

from contextlib import closing
from typing import TYPE_CHECKING, Any, NoReturn

from celery.concurrency.base import BasePool
from celery.exceptions import InvalidTaskError
from celery.worker import state
from kombu.asynchronous import Hub

if TYPE_CHECKING:
    from inference.worker.processes.replica_pool import ReplicaPool

TIMERS_S = 0.5  # seconds between two looks at Celery's timers while the worker leaves


class TaskPool(BasePool):
    """The pool that Celery starts and stops with the worker.

    It runs the batches that the dispatcher sends, and no tasks.
    """

    replicas: "ReplicaPool | None" = None  # None once the worker has stopped it
    _loop: Any = None  # Celery's event loop
    _is_cold = False  # True once it was told to stop within the handler of a cold shutdown

    def take_replicas(self, replicas: "ReplicaPool") -> None:
        """Take the processes that Celery is to start and stop."""
        self.replicas = replicas

    def on_start(self) -> None:
        if self.replicas:
            self.replicas.start_missing_process()

    def register_with_event_loop(self, loop: Any) -> None:
        self._loop = loop

    def on_close(self) -> None:
        if self.replicas:
            self.replicas.close()

    def on_stop(self) -> None:
        """Run what has begun to its end.

        Celery's event loop turns no more, and another one calls the replicas back. It also runs Celery's timers: they
        look after stuck processes, and send heartbeats to the broker. At a cold shutdown Celery calls this within a
        signal handler, also while it runs. Then it terminates the pool; if a warm shutdown had begun, it calls this
        again instead.
        """
        if self.replicas and state.should_terminate is None:
            with closing(Hub()) as loop:
                loop.call_repeatedly(TIMERS_S, self._run_timers)
                self.replicas.join(loop, is_aborted=lambda: state.should_terminate is not None)
                self.replicas = None
        elif self._is_cold:
            self.on_terminate()
        else:
            self._is_cold = state.should_terminate is not None

    def _run_timers(self) -> None:
        if self._loop:
            self._loop.fire_timers()

    def on_terminate(self) -> None:
        if self.replicas:
            self.replicas.kill_children()
            self.replicas = None

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        """Do nothing: the process of a job runs other jobs, too. Celery calls this at a cold shutdown."""

    def on_apply(self, target: Any, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse a task that is not a job. Celery logs the error and drops the task's message."""
        raise InvalidTaskError(
            "a worker with models runs jobs only; run other tasks on a worker of their queues: celery worker -Q QUEUES"
        )

    @property
    def info(self) -> dict[str, Any]:
        replicas = self.replicas
        pids = [process.pid for process in list(replicas.processes.values())] if replicas else []
        return {"implementation": f"{__name__}:TaskPool", "max-concurrency": self.limit, "processes": pids}
