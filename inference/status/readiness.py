"""The readiness of this service for its models, as /readyz reports it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import redis
from django.conf import settings
from django.db import DatabaseError, InterfaceError

from inference.broker import publisher, redis_client
from inference.catalog import lookup
from inference.connection_retries import is_away
from inference.errors import BrokerUnavailable
from inference.fields.worker_documents import LOADING, ModelState
from inference.models import Job, Status, Worker
from inference.status import workers
from inference.store import pauses_and_drains


class Cause(enum.Enum):
    """A cause for which a worker does not serve a model, in words that the public may read.

    The cause that needs the least action comes first.
    """

    LOADING = LOADING
    CUT_OFF = "its worker is not connected to the broker."
    FAILED = "its worker cannot run it. Its operator finds the reason with `manage.py models`, and in the admin."
    DRAINED = "its worker is drained."
    ABSENT = "no living worker serves it."

    @property
    def sentence(self) -> str:
        return "No living worker has it." if self is Cause.ABSENT else f"{self.value[0].upper()}{self.value[1:]}"


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason why no worker serves a model.

    `detail` is what its worker reports. It may quote an engine, and is for operators.
    """

    cause: Cause
    detail: str = ""

    @property
    def text(self) -> str:
        """The text for operators."""
        return self.detail or self.cause.value


def find_problems() -> list[str]:
    """Return sentences on why the service is not ready, which the public may read.

    It is ready when the database and the broker answer, and every model is served.
    """
    found = list(find_broker_problems())
    try:
        living = list(workers.select_living_workers())
    except (DatabaseError, InterfaceError):
        return [*found, "The database does not answer."]
    return [*found, *_find_model_problems(living)]


def find_broker_problems() -> Iterator[str]:
    try:
        publisher.ping_broker()
    except BrokerUnavailable:
        yield "The broker does not answer; jobs are accepted and run when it is back."
    if publisher.uses_redis():
        return
    try:
        redis_client.get_client().ping()
    except redis.RedisError:
        yield "The Redis of the notices does not answer; requests that wait find their answers later."


def _find_model_problems(living: Sequence[Worker]) -> Iterator[str]:
    is_full = settings.ENGINE_ERRORS == "full"
    if not lookup.get_catalog_or_empty():
        yield f"The models file is refused{f': {lookup.find_file_problem()}' if is_full else '.'}"
    for name, reason in find_unserved_reasons(living).items():
        yield f"{name}: {reason.text if is_full else reason.cause.value}"


def find_unserved_reasons(living: Sequence[Worker]) -> dict[str, Reason]:
    """Return the models of the models file that none of these workers serves, and why."""
    served = workers.count_workers_by_model(worker for worker in living if worker.connected)
    return {name: _find_reason(living, name) for name in lookup.get_catalog_or_empty() if not served[name]}


def _find_reason(living: Iterable[Worker], name: str) -> Reason:
    """Return the reason why no worker serves the model; of several, the one that needs the least action."""
    reasons = (reason for worker in living if (reason := find_worker_unready_reason(worker, name)))
    return min(reasons, key=lambda reason: list(Cause).index(reason.cause), default=Reason(Cause.ABSENT))


def find_worker_unready_reason(worker: Worker, name: str) -> Reason | None:
    """Return why the worker does not serve the model; None if it serves it, or if its row does not mention it."""
    if name in worker.model_names:
        return None if worker.connected else Reason(Cause.CUT_OFF)
    found = [replica.models[name] for replica in worker.replicas.values() if name in replica.models]
    if worker.is_to_rest and any(model.state is ModelState.READY for model in found):
        return Reason(Cause.DRAINED)
    model = next((model for model in found if model.state is not ModelState.READY), None)
    if model is None:
        return None
    return Reason(Cause.LOADING) if model.state is ModelState.LOADING else Reason(Cause.FAILED, model.why)


def explain_job_wait(job: Job) -> str:
    """Return a sentence, for the client of a job, on why its turn does not come.

    It is an empty string if the turn comes, or if the reason cannot be found now. The sentence quotes no engine.
    """
    if job.status != Status.QUEUED:
        return ""
    try:
        if job.model in pauses_and_drains.list_paused_models():
            return f"{job.model!r} is paused: its jobs wait until it is resumed."
        return "" if workers.count_serving_workers(job.model) else explain_unserved_model(job.model)[0]
    except Exception as error:
        if not is_away(error):
            raise
        return ""


def explain_unserved_model(name: str) -> tuple[str, str]:
    """Return two texts on why no worker serves the model: one for clients, and the detail for its operator."""
    reason = _find_reason(list(workers.select_living_workers()), name)
    return f"No worker serves {name!r} now. {reason.cause.sentence}", reason.detail
