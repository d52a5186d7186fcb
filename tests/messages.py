"""What waits in the broker for one job: other tests' writers may still be sending theirs."""

import json
from base64 import b64decode

from inference.broker import address, redis_client
from inference.models import Job
from inference.store.job_messages import make_message


def messages_for(job: Job) -> int:
    return sum(str(job.pk) in ids for ids in packs(make_message(job).queue))


def packs(queue: str) -> list[list[str]]:
    """Of each message the ids of its jobs, the next message first."""
    client = redis_client.get_client()
    keys = [address.make_queue_key(queue, step) for step in address.PRIORITY_STEPS]
    return [ids_of(text) for key in keys for text in reversed(client.lrange(key, 0, -1))]


def ids_of(text: bytes | str) -> list[str]:
    (first,), hints, _ = json.loads(b64decode(json.loads(text)["body"]))
    return [first, *(job_id for job_id, _, _ in hints.get("others", ()))]
