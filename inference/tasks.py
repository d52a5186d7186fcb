"""The Celery tasks: one message a job, which the worker's batching strategy runs many at a time; and webhooks."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from celery import Task, shared_task
from django.conf import settings

from inference import webhooks

TASK = "inference.run"


class BatchedTask(Task):
    """Consumed in batches: see `inference.worker.consumer`."""

    abstract = True
    typing = False
    acks_late = True
    ignore_result = True
    Strategy = "inference.worker.consumer:strategy"
    Request = "inference.worker.consumer:JobRequest"


@shared_task(name=TASK, base=BatchedTask)
def run(job_id: str, **hints: Any) -> None:
    raise NotImplementedError("Runs on a worker only: start one with `celery -A project worker`.")


@shared_task(name="inference.deliver_webhook", ignore_result=True, acks_late=True)
def deliver_webhook(key: str) -> None:
    webhooks.deliver(UUID(key))


def send_due_webhooks() -> None:
    """Every worker looks every few seconds: a finished job's notice is found however the job ended."""
    if settings.WEBHOOK_HOSTS:
        for key in webhooks.take_due():
            deliver_webhook.apply_async([str(key)], queue=settings.WEBHOOK_QUEUE, retry=False)
