"""Functions that send jobs' messages, and count those that wait.

A call fails within about a second, and while the broker is known to be away at once. A Redis broker is written to
directly, as kombu would do it; any other is reached through kombu.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import redis
from django.conf import settings

from inference.broker import address, other_broker_publisher, redis_client
from inference.broker.messages import JobMessage, make_redis_envelope
from inference.connection_retries import is_away
from inference.values.priority import Priority

CHUNK = 500  # messages in one command: a server runs one command at a time


def publish_messages(messages: Sequence[JobMessage]) -> None:
    """Send all messages, the oldest first.

    Messages that are sent again go before those that wait, if the broker can do that.

    Raises `BrokerUnavailable`; some messages may have been sent then, and may be sent again. Raises `PublishRefused` if
    all messages except those for its `queues` were sent.
    """
    if not messages:
        return
    if not uses_redis():
        other_broker_publisher.get_publisher().publish(messages)
        return
    refused: dict[str, object] = {}
    for queue, command, key, texts in _group_into_pushes(messages):
        try:
            with redis_client.borrow_client() as client:
                client.execute_command(command, key, *texts)
        except redis.RedisError as error:
            refused[queue] = error
    other_broker_publisher.raise_if_refused(refused)


def count_messages(queues: Sequence[str]) -> dict[str, int]:
    """Return how many messages wait in each queue, over all priorities; raise `BrokerUnavailable` if it fails."""
    if not uses_redis():
        return other_broker_publisher.get_publisher().read_queue_lengths(queues)
    found = _read_list_lengths(queues)
    other_broker_publisher.raise_if_refused(
        {queue: error for queue, lengths in found.items() for error in lengths if isinstance(error, Exception)}
    )
    return {queue: sum(lengths) for queue, lengths in found.items()}


def list_waiting_priorities(queues: Sequence[str]) -> dict[str, set[int]]:
    """Return the priorities of which messages may wait in each queue.

    If the broker does not report lengths by priority, they are all priorities. Raises `BrokerUnavailable`.
    """
    if not uses_redis():
        lengths = other_broker_publisher.get_publisher().read_queue_lengths(queues)
        return {queue: set(Priority if length else ()) for queue, length in lengths.items()}
    return {
        queue: {priority for priority, length in zip(Priority, lengths, strict=True) if length or of_any}
        for queue, (of_any, *lengths) in _read_list_lengths(queues).items()
    }


def _read_list_lengths(queues: Sequence[str]) -> dict[str, list[Any]]:
    """Return the lengths of each queue's lists, in the order of `PRIORITY_STEPS`.

    A list that Redis refused to measure has an error in place of its length.
    """
    steps = address.PRIORITY_STEPS
    with redis_client.breaker.guard_call(), redis_client.get_client().pipeline(transaction=False) as pipe:
        for queue, step in itertools.product(queues, steps):
            pipe.llen(address.make_queue_key(queue, step))
        found = pipe.execute(raise_on_error=False)
        for error in found:
            if isinstance(error, Exception) and is_away(error):
                raise error
    counts = iter(found)
    return {queue: list(itertools.islice(counts, len(steps))) for queue in queues}


def ping_broker() -> None:
    """Call the broker of the messages, and raise `BrokerUnavailable` if it does not answer."""
    if not uses_redis():
        other_broker_publisher.get_publisher().ping()
        return
    with redis_client.breaker.guard_call():
        redis_client.get_client().ping()


def uses_redis() -> bool:
    """Return True if the messages go to REDIS_URL, as the notices do."""
    url = settings.REDIS_URL
    return settings.CELERY_BROKER_URL in (address.make_kombu_url(url), address.make_stock_kombu_url(url))


def _group_into_pushes(messages: Sequence[JobMessage]) -> Iterator[tuple[str, str, str, list[bytes]]]:
    """Group messages into pushes: a queue, a command, a key, and the texts that one command pushes.

    LPUSH puts each text behind those that wait. RPUSH puts each before them; its texts are in reverse order.
    """
    texts: dict[tuple[str, str, str], list[bytes]] = {}
    for message in messages:
        command = "RPUSH" if message.recovered else "LPUSH"
        key = address.make_queue_key(message.queue, message.priority)
        texts.setdefault((message.queue, command, key), []).append(make_redis_envelope(message))
    for (queue, command, key), waiting in texts.items():
        ordered = waiting[::-1] if command == "RPUSH" else waiting
        for start in range(0, len(ordered), CHUNK):
            yield queue, command, key, ordered[start : start + CHUNK]
