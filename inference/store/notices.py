"""Notices that jobs are finished: their ids, on a channel of Redis. A notice is a hint, the rows are the truth."""

import logging
from collections.abc import Collection
from uuid import UUID

import redis
from django.conf import settings

from inference.broker import redis_client
from inference.errors import BrokerUnavailable
from inference.store import connections
from inference.values.uuid_parsing import make_uuid_from_hex

logger = logging.getLogger(__name__)


def get_channel_name() -> str:
    return f"{settings.SERVICE_PREFIX}inference.finished"


def publish_finished_jobs(ids: Collection[UUID]) -> None:
    """Publish to all processes that the jobs are finished.

    If the notice cannot be sent, the requests that wait for these jobs find out by a slow poll.
    """
    connections.release_connection()
    try:
        with redis_client.borrow_client() as client:
            client.publish(get_channel_name(), ",".join(job_id.hex for job_id in ids))
    except (redis.RedisError, BrokerUnavailable) as error:
        logger.warning("notice of %d finished jobs not sent, waiters will poll: %s", len(ids), error)


def parse_ids(data: bytes) -> list[UUID]:
    """Return the job ids in a notice; an empty list if `data` is no notice."""
    try:
        return [make_uuid_from_hex(part) for part in data.split(b",")]
    except ValueError:
        logger.warning("not a notice, dropped: %.80r", data)
        return []
