"""The Celery task of a job. The worker's batching strategy runs many jobs at a time."""

from typing import Any

from celery import Task, shared_task

from inference.broker.messages import TASK


class BatchedTask(Task[..., None]):
    """A task whose messages are consumed in batches by `inference.worker.celery_worker.strategy`."""

    typing = False
    Strategy = "inference.worker.celery_worker.strategy:strategy"
    Request = "inference.worker.celery_worker.strategy:JobRequest"


@shared_task(name=TASK, base=BatchedTask)
def run(job_id: str, **hints: Any) -> None:
    raise NotImplementedError("Runs on a worker only: start one with `celery -A project worker`.")
