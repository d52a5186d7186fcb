"""Whether this service can answer for its models: what /readyz says."""

from collections.abc import Iterator, Sequence

import redis
from django.db import DatabaseError, InterfaceError

from inference.broker import publish, redis_client
from inference.catalog.lookup import models
from inference.errors import BrokerUnavailable
from inference.models import Worker
from inference.status import workers

READY = "ready"


def problems() -> list[str]:
    """Why the service is not ready; nothing when it is: the database and the broker answer, every model is served."""
    found = list(broker_problems())
    try:
        living = list(workers.living())
    except (DatabaseError, InterfaceError):
        return [*found, "The database does not answer."]
    return [*found, *_models(living)]


def broker_problems() -> Iterator[str]:
    try:
        publish.ping()
    except BrokerUnavailable:
        yield "The broker does not answer; jobs are accepted and run when it is back."
    if publish.is_redis():
        return
    try:
        redis_client.get().ping()
    except redis.RedisError:
        yield "The Redis of the notices does not answer; requests that wait find their answers later."


def _models(living: Sequence[Worker]) -> Iterator[str]:
    for name, reason in unserved(living):
        yield f"{name}: {reason}"


def unserved(living: Sequence[Worker]) -> Iterator[tuple[str, str]]:
    """Models that none of these workers serves, and why."""
    served = workers.count_served(worker for worker in living if worker.connected)
    for name in models():
        if not served[name]:
            reasons = (reason for worker in living if (reason := why_not(worker, name)))
            yield name, next(reasons, "no living worker serves it.")


def why_not(worker: Worker, name: str) -> str:
    """Why the worker does not serve the model; nothing when it does, or knows nothing of it."""
    if name in worker.model_names:
        return "" if worker.connected else "its worker is not connected to the broker."
    states = [str(state) for replica in worker.replicas.values() if (state := replica.get("models", {}).get(name))]
    if worker.is_to_rest and READY in states:
        return "its worker is drained."
    return next((state for state in states if state != READY), "")
