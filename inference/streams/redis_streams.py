"""The text of jobs that are being generated, as Redis keeps it.

Redis has a stream of chunks for each job, and child processes publish a message for each round of chunks. All of it may
be lost: a reader sees that characters are missing, and waits until a child process writes the whole text again, or for
the row.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import redis
from django.conf import settings

from inference.broker import redis_client
from inference.broker.circuit_breaker import CircuitOpen
from inference.errors import BrokerUnavailable
from inference.streams.chunks import Chunk

logger = logging.getLogger(__name__)

Entry = tuple[bytes, Chunk]  # the id of an entry in the Redis stream, and its chunk

FIRST = b"0-0"  # an id before those of all entries
MOST_CHUNKS = 1_000  # of a job; Redis drops the oldest beyond that; the whole text is written again long before
KEPT_S = 60  # after the last chunk: the text of a job that has ended is read from its row
_FIELD = b"c"


def make_hint_channel_name() -> str:
    return f"{settings.SERVICE_PREFIX}inference.told"


def make_stream_key(job_id: UUID) -> bytes:
    return f"{settings.SERVICE_PREFIX}inference.stream.{job_id.hex}".encode()


def write_chunks(chunks: Sequence[Chunk]) -> None:
    """Write the chunks of many jobs to Redis in one round trip, which takes a second at most.

    Chunks that Redis does not take are lost. A chunk that has all of the text replaces the chunks before it.
    """
    if not chunks:
        return
    try:
        with redis_client.borrow_client() as client, client.pipeline(transaction=False) as round_trip:
            for chunk in chunks:
                key = make_stream_key(chunk.job_id)
                most = MOST_CHUNKS if chunk.at else 1
                round_trip.xadd(key, {_FIELD: chunk.to_bytes()}, maxlen=most, approximate=bool(chunk.at))
                round_trip.expire(key, KEPT_S)
            round_trip.publish(make_hint_channel_name(), make_text_hint({chunk.job_id for chunk in chunks}))
            refused = [answer for answer in round_trip.execute(raise_on_error=False) if isinstance(answer, Exception)]
    except CircuitOpen:
        return  # a warning was logged when Redis became unavailable
    except (redis.RedisError, BrokerUnavailable) as error:
        refused = [error]
    if refused:
        logger.warning("text of %d jobs not published, their streams have it at the end: %s", len(chunks), refused[0])


def read_entries(after: Mapping[UUID, bytes], most: int) -> dict[UUID, list[Entry]]:
    """Return the entries of each of these jobs after the entry that `after` names, at most `most` for each.

    A job without such entries is missing in the result. Raises `BrokerUnavailable` and `RedisError`.
    """
    by_key = {make_stream_key(job_id): job_id for job_id in after}
    with redis_client.borrow_client() as client:
        found: Any = client.xread({make_stream_key(job_id): last for job_id, last in after.items()}, count=most)
    return {by_key[key]: list(_parse_entries(by_key[key], entries)) for key, entries in found}


def _parse_entries(job_id: UUID, entries: Sequence[tuple[bytes, Mapping[bytes, bytes]]]) -> Iterator[Entry]:
    for entry_id, fields in entries:
        try:
            yield entry_id, Chunk.from_bytes(job_id, fields[_FIELD])
        except (ValueError, KeyError):
            logger.warning("job=%s: what is in its stream at %r is no chunk, passed over", job_id, entry_id)


def parse_entry_id(entry_id: bytes) -> tuple[int, int]:
    """Return the id of an entry as two numbers, which sort as the entries do."""
    milliseconds, _, number = entry_id.partition(b"-")
    return int(milliseconds), int(number)


def make_text_hint(ids: Collection[UUID]) -> bytes:
    """Return the message that says that there is more text of these jobs."""
    return ",".join(job_id.hex for job_id in ids).encode()
