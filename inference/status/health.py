"""Whether this service can answer for its models: what /readyz says."""

from collections.abc import Callable, Iterator, Sequence

import redis
from django.conf import settings
from django.db import DatabaseError, InterfaceError

from inference.broker import publish, redis_client
from inference.catalog.lookup import models
from inference.errors import BrokerUnavailable
from inference.models import Worker
from inference.status import workers

READY = "ready"
CUT_OFF = "its worker is not connected to the broker."
DRAINED = "its worker is drained."
LOADS = "its worker is loading it."
FAILED = "its worker cannot run it. Its operator finds the reason with `manage.py models`, and in the admin."
NOBODY = "no living worker serves it."


def problems() -> list[str]:
    """Return why the service is not ready, as the public may read it. It is ready when the database and the broker
    answer, and every model is served."""
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
    is_full = settings.ENGINE_ERRORS == "full"
    for name, reason in unserved(living, why_not if is_full else public_why_not):
        yield f"{name}: {reason}"


def unserved(living: Sequence[Worker], why: Callable[[Worker, str], str] | None = None) -> Iterator[tuple[str, str]]:
    """Yield the models that none of these workers serves, each with the reason, in the words that `why` has for it:
    those of `why_not` unless told otherwise."""
    why = why or why_not
    served = workers.count_served(worker for worker in living if worker.connected)
    for name in models():
        if not served[name]:
            yield name, next((reason for worker in living if (reason := why(worker, name))), NOBODY)


def why_not(worker: Worker, name: str) -> str:
    """Return why the worker does not serve the model, for operators: in the words of what loading it raised.

    It is empty when the worker serves the model, or knows nothing of it."""
    if name in worker.model_names:
        return "" if worker.connected else CUT_OFF
    states = _states(worker, name)
    if worker.is_to_rest and READY in states:
        return DRAINED
    return next((state for state in states if state != READY), "")


def public_why_not(worker: Worker, name: str) -> str:
    """Return the same as the public may read it: nothing of what was raised."""
    if not (why := why_not(worker, name)) or why in (CUT_OFF, DRAINED, LOADS):
        return why
    return FAILED


def _states(worker: Worker, name: str) -> list[str]:
    """Of the model in each replica."""
    return [str(state) for replica in worker.replicas.values() if (state := replica.get("models", {}).get(name))]
