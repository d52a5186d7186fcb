"""The intents of operators: models that are paused, and workers that are drained.

They are rows, which each worker reads with its heartbeat. An intent therefore does not depend on the broker, and a
pause of a model holds for workers that start later.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from inference.models import PausedModel, Worker


def is_drained(worker: UUID) -> bool:
    """Return True if the worker is to take nothing new."""
    return Worker.objects.filter(pk=worker, is_to_rest=True).exists()


def list_paused_models() -> frozenset[str]:
    """Return the models of which no job is to be begun."""
    return frozenset(PausedModel.objects.order_by().values_list("model", flat=True))


def pause_model(model: str, by: Any) -> bool:
    """Pause a model, and return True if it was not paused before."""
    return PausedModel.objects.get_or_create(model=model, defaults={"paused_by": by})[1]


def resume_model(model: str) -> bool:
    """Resume a model, and return True if it was paused."""
    return bool(PausedModel.objects.filter(pk=model).delete()[0])


def drain_worker(worker: UUID) -> bool:
    """Drain a worker, and return True if there is such a worker and it was not drained before.

    The worker ends what it has begun; what else it holds goes back to the queues. After a restart it is another worker,
    which is not drained.
    """
    return bool(Worker.objects.filter(pk=worker, is_to_rest=False).update(is_to_rest=True))


def undrain_worker(worker: UUID) -> bool:
    """Let a drained worker take jobs again, and return True if it was drained."""
    return bool(Worker.objects.filter(pk=worker, is_to_rest=True).update(is_to_rest=False))
