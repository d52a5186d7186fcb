"""The priorities of jobs. The settings import this module, before there are any models."""

from django.db.models.enums import IntegerChoices


class Priority(IntegerChoices):
    """The priority of a job. A smaller number goes first.

    The numbers are stored, and none is free between two: a migration has to move those behind a new one. One at the end
    only changes the choices of a column. Lists of messages in the broker, limits, the admin and the words of our own
    interface follow from the name and the number. OpenAI's words are in `api.requests.dialects.base`, those of the
    client's command in `batch_inference_client.command`. How much each gets while others wait is in
    `inference.batching.shares`.
    """

    HIGH = 1
    NORMAL = 2
    LOW = 3


PATIENT = Priority.LOW  # and larger numbers: no client waits for each of these jobs, and their limits are their own
