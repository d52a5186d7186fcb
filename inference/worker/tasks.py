"""The Celery task: one message a job, which the worker's batching strategy runs many at a time."""

from typing import Any

from celery import Task, shared_task

from inference.broker.messages import TASK


class BatchedTask(Task[..., None]):
    """Consumed in batches: see `inference.worker.consumer`."""

    typing = False
    Strategy = "inference.worker.consumer:strategy"
    Request = "inference.worker.consumer:JobRequest"


@shared_task(name=TASK, base=BatchedTask)
def run(job_id: str, **hints: Any) -> None:
    raise NotImplementedError("Runs on a worker only: start one with `celery -A project worker`.")
