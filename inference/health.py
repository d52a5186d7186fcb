"""Whether this service can answer for its models: what /readyz says."""

from __future__ import annotations

from collections.abc import Iterator

import redis
from django.conf import settings
from django.db import DatabaseError, InterfaceError

from inference import catalog, workers
from inference.broker import publish
from inference.models import Worker

READY = "ready"


def problems() -> list[str]:
    """Why the service is not ready; nothing when it is: the database and the broker answer, every model is served."""
    found = list(_broker())
    try:
        living = list(workers.living())
    except (DatabaseError, InterfaceError):
        return [*found, "The database does not answer."]
    return [*found, *_models(living)]


def _broker() -> Iterator[str]:
    try:
        publish.redis_client().ping()
    except redis.RedisError:
        yield "The broker does not answer; jobs are accepted and run when it is back."


def _models(living: list[Worker]) -> Iterator[str]:
    for name in catalog.load_cached(settings.MODELS_FILE):
        states = [state for worker in living if (state := model_state(worker, name))]
        if READY not in states:
            yield f"{name}: {states[0] if states else 'no living worker serves it.'}"


def model_state(worker: Worker, name: str) -> str:
    """ "ready" when a replica of the worker serves the model, else why not; "" when the worker knows nothing of it."""
    states = [str(state) for replica in worker.replicas.values() if (state := replica.get("models", {}).get(name))]
    if not states and name in worker.model_names:
        return "its worker is loading it."
    return READY if READY in states else next(iter(states), "")
