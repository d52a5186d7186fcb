"""The messages of stored jobs: what they hold, and what becomes of those that cannot be sent."""

import logging
from collections.abc import Sequence

from inference import failpoints, row_locks
from inference.broker import address, publisher
from inference.broker.circuit_breaker import CircuitOpen
from inference.broker.messages import JobMessage
from inference.broker.other_broker_publisher import PublishRefused
from inference.catalog import specs
from inference.connection_retries import is_away
from inference.errors import BrokerUnavailable
from inference.models import Job
from inference.store import job_rows

logger = logging.getLogger(__name__)


def send_messages(messages: Sequence[JobMessage]) -> None:
    """Send the messages of committed jobs.

    Messages that cannot be sent now are sent by the reconciler, whether their rows are marked for that or not.
    """
    if not messages:
        return
    failpoints.reach("before_publish")
    try:
        publisher.publish_messages(messages)
    except PublishRefused as error:
        _mark_unsent([message for message in messages if message.queue in error.queues], error)
    except BrokerUnavailable as error:
        _mark_unsent(messages, error)
    failpoints.reach("after_publish")


def _mark_unsent(messages: Sequence[JobMessage], reason: BrokerUnavailable) -> None:
    level = logging.DEBUG if isinstance(reason, CircuitOpen) else logging.WARNING
    ids = [job_id for message in messages for job_id in message.job_ids]
    logger.log(level, "%d jobs accepted without a message, the reconciler sends it: %s", len(ids), reason)
    try:
        row_locks.update_rows(Job.objects.filter(pk__in=ids), published_at=None)
    except Exception as error:
        if not is_away(error):
            raise
        logger.warning("they are not marked, and found later: %s", error)


def make_message(job: Job, *, recovered: bool = False) -> JobMessage:
    """Return the message of a job: what batching needs, and no inputs."""
    return JobMessage(
        job_id=str(job.id),
        model=job.model,
        queue=address.get_queue_name(job.model),
        group=specs.digest_parameters(job.parameters),
        size=job.size,
        length=job.length,
        priority=job.priority,
        created_at=job.created_at.timestamp(),
        expires_at=job.expires_at.timestamp() if job.expires_at else None,
        owner=None if job.owner_id is None else str(job.owner_id),
        alone=job.recoveries >= job_rows.get_run_alone_threshold(),
        recovered=recovered,
    )
