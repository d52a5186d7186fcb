"""The address of the broker: the embedded server's socket, and one URL in the two spellings that its clients need.

It also has the names of queues and of keys in Redis, and the options of the transport.
"""

import hashlib
import os
import tempfile
from pathlib import Path

from django.conf import settings

from inference.values.priority import Priority

LONGEST_SOCKET_PATH = 103  # bytes on macOS; Linux takes 107
LONGEST_ROOT = 60  # leaves room for the folder's and the socket's names
PRIORITY_STEPS = (0, *Priority)  # an earlier version put messages that it sent again into the first

KOMBU_KEYS = {  # keys of kombu's Redis transport, by option; its other keys have the name of an exchange in them
    "unacked_key": "unacked",
    "unacked_index_key": "unacked_index",
    "unacked_mutex_key": "unacked_mutex",
    "keyprefix_binding_deadlines": "_kombu.binding_deadlines",  # an option of this package's transport only
}


def find_temporary_folder() -> Path:
    """Return the temporary folder; /tmp if the path of that folder is too long.

    XDG_RUNTIME_DIR is not used: it is removed when its user logs out, while the server goes on.
    """
    roots = (tempfile.gettempdir(), "/tmp")  # noqa: S108 - a 0700 folder in it
    return Path(next(root for root in roots if len(os.fsencode(root)) <= LONGEST_ROOT and os.path.isdir(root)))


def make_embedded_socket_path(data: Path) -> Path:
    """Return the path of the socket, in a short folder for this user and `data`, however long the path of `data` is."""
    digest = hashlib.sha256(str(data.resolve()).encode()).hexdigest()
    return find_temporary_folder() / f"inference-{os.getuid()}-{digest[:12]}" / "broker.sock"


def make_embedded_url(data: Path) -> str:
    return f"unix://{make_embedded_socket_path(data)}"


def make_kombu_url(redis_url: str) -> str:
    """Return the broker URL for the transport of this package."""
    return f"inference-{make_stock_kombu_url(redis_url)}"


def make_stock_kombu_url(redis_url: str) -> str:
    """Return the broker URL for kombu's own transport.

    The unix://PATH?db=N of redis-py is redis+socket://PATH?virtual_host=N in kombu.
    """
    if redis_url.startswith("unix://"):
        return "redis+socket://" + redis_url.removeprefix("unix://").replace("?db=", "?virtual_host=")
    return redis_url


def make_queue_name(prefix: str, model: str) -> str:
    """Return the queue of a model's messages, in the service whose names begin with `prefix`."""
    return f"{prefix}inference.{model}"


def get_queue_name(model: str) -> str:
    """Return the queue of a model's messages in this service."""
    return make_queue_name(settings.SERVICE_PREFIX, model)


def is_of_model(queue: str) -> bool:
    """Return True if the queue is that of a model of this service."""
    return queue.startswith(get_queue_name(""))


def make_queue_key(queue: str, step: int) -> str:
    """Return the key of the list in which kombu's Redis transport keeps a queue's messages of one priority."""
    return f"{queue}\x06\x16{step}" if step else queue


def make_kombu_options(broker_url: str, prefix: str = "") -> dict[str, object]:
    """Return Celery's `broker_transport_options`, which are empty for other brokers than Redis.

    The names of the transport's own keys begin with `prefix`.
    """
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
