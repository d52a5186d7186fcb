"""The priorities of jobs. The settings import this module, before there are any models."""

from django.db.models.enums import IntegerChoices


class Priority(IntegerChoices):
    """The priority of a job. A smaller number goes first.

    The numbers are stored, and none is free between two: a migration has to move those behind a new one. A list of
    messages in the broker and a word in each interface follow from the name and the number. The words of the client
    are in `batch_inference_client.command`; a test compares them.
    """

    HIGH = 1
    NORMAL = 2
    LOW = 3


PATIENT = Priority.LOW  # and larger numbers: no client waits for each of these jobs, and their limits are their own
