"""The queue of a model, as workers and senders declare it."""

from kombu import Exchange, Queue

from inference.broker.address import queue_arguments


def make_queue(name: str, prefix: str, broker_url: str) -> Queue:
    """Return the queue `name`; the names of the service begin with `prefix`."""
    return Queue(name, Exchange(f"{prefix}inference"), name, queue_arguments=queue_arguments(broker_url))
