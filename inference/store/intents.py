"""What operators want of the workers: models that are paused, and workers that are drained. Rows, which each worker
reads with its heartbeat: a wish outlives a broker that is away, and that of a model every worker."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from inference.models import PausedModel, Worker


def is_drained(worker: UUID) -> bool:
    """Whether it is to take nothing new."""
    return Worker.objects.filter(pk=worker, is_to_rest=True).exists()


def paused_models() -> frozenset[str]:
    """Models of which nothing is to be begun."""
    return frozenset(PausedModel.objects.order_by().values_list("model", flat=True))


def pause(model: str, by: Any) -> bool:
    """Whether it was not paused before."""
    return PausedModel.objects.get_or_create(model=model, defaults={"paused_by": by})[1]


def resume(model: str) -> bool:
    return bool(PausedModel.objects.filter(pk=model).delete()[0])


def drain(worker: UUID) -> bool:
    """Whether there is such a worker that was not drained before. It ends what it has begun; what else it holds goes
    back to the queues. One that is started again is another worker."""
    return bool(Worker.objects.filter(pk=worker, is_to_rest=False).update(is_to_rest=True))


def undrain(worker: UUID) -> bool:
    return bool(Worker.objects.filter(pk=worker, is_to_rest=True).update(is_to_rest=False))
