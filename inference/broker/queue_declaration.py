"""The queue of a model, as workers and senders declare it."""

from kombu import Exchange, Queue


def make_queue(name: str, prefix: str, broker_url: str) -> Queue:
    """Return the queue `name`; the names of the service begin with `prefix`.

    On RabbitMQ it is a quorum queue, whose messages outlive one of its nodes.
    """
    arguments = {"x-queue-type": "quorum"} if broker_url.startswith(("amqp", "pyamqp")) else {}
    return Queue(name, Exchange(f"{prefix}inference"), name, queue_arguments=arguments)
