"""What waits in the broker for one job: other tests' writers may still be sending theirs."""

from inference.broker import address, redis_client
from inference.models import Job
from inference.submission.writer import message_of


def messages_for(job: Job) -> int:
    client = redis_client.get()
    keys = [address.redis_key(message_of(job).queue, step) for step in address.PRIORITY_STEPS]
    return sum(f'"id":"{job.pk}"'.encode() in text for key in keys for text in client.lrange(key, 0, -1))
