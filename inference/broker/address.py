"""Where the broker is: the embedded server's socket, and one URL in the two spellings its clients want."""

import hashlib
import os
import tempfile
from pathlib import Path

from django.conf import settings

LONGEST_SOCKET_PATH = 103  # bytes on macOS; Linux takes 107
LONGEST_ROOT = 60  # leaves room for the folder's and the socket's names
PRIORITIES = (1, 2, 3)  # high, normal, low: a Redis list each, looked at in this order
PRIORITY_STEPS = (0, *PRIORITIES)  # an earlier version put into the first what it sent again

KOMBU_KEYS = {  # of its Redis transport, by option; its others have the name of an exchange in them
    "unacked_key": "unacked",
    "unacked_index_key": "unacked_index",
    "unacked_mutex_key": "unacked_mutex",
    "keyprefix_binding_deadlines": "_kombu.binding_deadlines",  # an option of our transport only
}


def short_root() -> Path:
    """The temporary folder; a TMPDIR in a deep place is passed over. Not XDG_RUNTIME_DIR: that is removed when its user
    logs out, while the server goes on."""
    roots = (tempfile.gettempdir(), "/tmp")  # noqa: S108 - a 0700 folder in it
    return Path(next(root for root in roots if len(os.fsencode(root)) <= LONGEST_ROOT and os.path.isdir(root)))


def embedded_socket(data: Path) -> Path:
    """In a short folder of this user and data folder, however long its own path is."""
    digest = hashlib.sha256(str(data.resolve()).encode()).hexdigest()
    return short_root() / f"inference-{os.getuid()}-{digest[:12]}" / "broker.sock"


def embedded_url(data: Path) -> str:
    return f"unix://{embedded_socket(data)}"


def kombu_url(redis_url: str) -> str:
    """For the transport of this package."""
    return f"inference-{stock_kombu_url(redis_url)}"


def stock_kombu_url(redis_url: str) -> str:
    """For kombu's own: redis-py says unix://PATH?db=N where kombu says redis+socket://PATH?virtual_host=N."""
    if redis_url.startswith("unix://"):
        return "redis+socket://" + redis_url.removeprefix("unix://").replace("?db=", "?virtual_host=")
    return redis_url


def queue_name(prefix: str, model: str) -> str:
    """Where the messages of a model's jobs are, in the service whose names begin with `prefix`."""
    return f"{prefix}inference.{model}"


def queue_of(model: str) -> str:
    """In this service."""
    return queue_name(settings.SERVICE_PREFIX, model)


def is_of_model(queue: str) -> bool:
    """Of this service."""
    return queue.startswith(queue_of(""))


def redis_key(queue: str, step: int) -> str:
    """The list where kombu's Redis transport keeps the messages of a queue and a priority."""
    return f"{queue}\x06\x16{step}" if step else queue


def queue_arguments(broker_url: str) -> dict[str, str]:
    """With which workers and senders declare their queues: what a quorum queue holds outlives a node of RabbitMQ."""
    return {"x-queue-type": "quorum"} if broker_url.startswith(("amqp", "pyamqp")) else {}


def kombu_options(broker_url: str, prefix: str = "") -> dict[str, object]:
    """`broker_transport_options`: other brokers know none of them. `prefix` is that of the transport's own keys."""
    if "redis" not in broker_url.partition(":")[0]:
        return {}
    return {
        **{option: f"{prefix}{key}" for option, key in KOMBU_KEYS.items()},
        "priority_steps": list(PRIORITY_STEPS),
        "socket_timeout": 5.0,  # a stalled server must not hold the worker's loop for ever
        "socket_connect_timeout": 2.0,
        "socket_keepalive": True,
        "health_check_interval": 10,  # s; finds half-open connections
    }
