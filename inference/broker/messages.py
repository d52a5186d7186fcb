"""The messages to the workers: Celery messages (protocol 2) with hints for batching, and no inputs.

A message is for one job, or for several that were accepted together.
"""

import functools
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import orjson
from celery import current_app
from uuid_utils import uuid4

from inference.values.priority import Priority

TASK = "inference.run"
MOST_PACKED = 1000  # jobs of one message that a worker reads
# The largest goes first. A quorum queue distinguishes 5 and above from the rest.
AMQP_PRIORITIES: dict[int, int] = {each: 6 if each == Priority.HIGH else len(Priority) - each for each in Priority}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMessage:
    """A hint that a row waits to be run: it does no harm if one is lost or doubled.

    `others` are further jobs, which differ from the first only in their id, size and length. A worker of a version
    without `others` runs the first job; the others are found to be missing, and sent again.
    """

    job_id: str
    model: str
    queue: str
    group: str  # the digest of the parameters: only equal ones share a batch
    size: int  # items
    length: int  # of the longest item, in tokens
    priority: int  # of `Priority`
    created_at: float  # s since the epoch
    expires_at: float | None  # s since the epoch
    owner: str | None = None  # the primary key of the job's owner: owners take turns
    alone: bool = False  # to be run with nothing beside it
    recovered: bool = False  # True if it is sent again: in Redis it then goes before the others of its priority
    others: tuple[tuple[str, int, int], ...] = ()  # ids, sizes, lengths

    @property
    def job_ids(self) -> list[str]:
        return [self.job_id, *(job_id for job_id, _, _ in self.others)]

    @property
    def rows(self) -> int:
        return self.size + sum(size for _, size, _ in self.others)

    @property
    def hints(self) -> dict[str, Any]:
        """The keyword arguments of the task."""
        return {
            "model": self.model,
            "group": self.group,
            "size": self.size,
            "length": self.length,
            "priority": self.priority,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "alone": self.alone,
            "owner": self.owner,
        }


@functools.cache
def _make_task_template() -> Any:
    """Return a message of Celery's for the task, of which the parts that all messages share are used.

    Each message has its own id, arguments, and texts of the arguments.
    """
    return current_app.amqp.as_task_v2("", TASK, ignore_result=True)


def pack_jobs(
    common: JobMessage, jobs: Iterable[tuple[str, int, int]], *, most: int, rows: int
) -> Iterator[JobMessage]:
    """Pack jobs into messages of at most `most` jobs and `rows` rows.

    `jobs` has the id, size and length of each. A job that alone has more rows is a message by itself.
    """
    pack: list[tuple[str, int, int]] = []
    size = 0
    for job in jobs:
        if pack and (len(pack) == most or size + job[1] > rows):
            yield _pack(common, pack)
            pack, size = [], 0
        pack.append(job)
        size += job[1]
    if pack:
        yield _pack(common, pack)


def _pack(common: JobMessage, jobs: list[tuple[str, int, int]]) -> JobMessage:
    (job_id, size, length), *others = jobs
    return replace(common, job_id=job_id, size=size, length=length, others=tuple(others))


def make_body(message: JobMessage) -> list[Any]:
    others = {"others": message.others} if message.others else {}
    return [[message.job_id], {**message.hints, **others}, _make_task_template().body[2]]


def make_headers(message: JobMessage) -> dict[str, Any]:
    """Return the headers of a message.

    Celery's `expires` is left out: a worker must not drop a message that its row still waits for.
    """
    return {
        **_make_task_template().headers,
        "id": message.job_id,
        "root_id": message.job_id,
        "rows": message.rows,
        "argsrepr": f"['{message.job_id}']",
        "kwargsrepr": repr(message.hints),
        **({"jobs": 1 + len(message.others)} if message.others else {}),
    }


def make_redis_envelope(message: JobMessage) -> bytes:
    """Return the text that kombu's Redis transport keeps in a list for a message of `kombu.Producer.publish`."""
    return orjson.dumps(
        {
            "body": b64encode(orjson.dumps(make_body(message))).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": make_headers(message),
            "properties": {
                "correlation_id": message.job_id,
                "reply_to": "",
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": message.queue},
                "priority": message.priority,
                "body_encoding": "base64",
                "delivery_tag": str(uuid4()),
            },
        }
    )
