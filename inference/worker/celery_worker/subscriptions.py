"""The queues that a worker consumes.

The broker may refuse a queue, and RabbitMQ deletes a queue without notice to its consumers. Everything but
`look_for_deleted_queues` runs in the worker's event loop.
"""

import logging
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from amqp.exceptions import PreconditionFailed
from django.conf import settings
from kombu import Exchange

from inference.broker import address, other_broker_publisher, queue_declaration
from inference.catalog.specs import Catalog
from inference.connection_retries import Backoff

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
ANSWER_S = 4.0  # the longest wait for an answer of the broker, after which the worker reconnects
DELETED_S = 10.0  # the same for the deletion of a damaged queue, for which RabbitMQ takes longer
BREAKS = 2  # broken connections, after which the queue is taken to be damaged, and not the broker


@dataclass(slots=True)
class Refusal:
    why: str = ""
    retry_at: float = 0.0  # monotonic
    breaks: int = 0  # times that the connection broke when the queue was declared
    backoff: Backoff = field(default_factory=lambda: Backoff(first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S))


class Subscriptions:
    """The queues that a worker consumes, across reconnects.

    When a queue of RabbitMQ before 4.0 is deleted and created anew at once, its consumers get no notice, and drop the
    new messages as duplicates of old ones. So each queue is bound to a mark: an exchange of this worker, which RabbitMQ
    deletes with the queue's last binding.

    A quorum queue that was new when RabbitMQ crashed may not be recovered. Then it gives no answer, or RabbitMQ closes
    the connection that declares it. Such a queue is deleted, by force where nothing of it is left, and created anew.
    The rows show which messages are missing.
    """

    def __init__(self, c: Any) -> None:
        self.is_amqp = c.conninfo.transport.driver_type == "amqp"
        self.c = c
        self._refused: dict[str, Refusal] = {}  # refusals by queue
        self._marks: Mapping[str, str] = {}  # exchanges by queue; replaced as a whole
        self._deleted: tuple[Mapping[str, str], frozenset[str]] = {}, frozenset()  # marks looked for, deleted queues

    def consume_queue(self, queue: str) -> None:
        """Consume a queue, unless the pause after its last refusal lasts. A refusal does not affect other queues.

        Raises a connection error if the connection is lost, or if the queue gives no answer.
        """
        known = self.c.app.amqp.queues
        if queue not in known:  # the queue of a model that was added after the worker's start
            known.add(queue_declaration.make_queue(queue, settings.SERVICE_PREFIX, settings.CELERY_BROKER_URL))
        refusal = self._refused.get(queue, Refusal())
        if time.monotonic() < refusal.retry_at:
            return
        try:
            is_broken = refusal.breaks >= BREAKS
            with self._limit_wait(DELETED_S if is_broken else ANSWER_S):
                if self.is_amqp:
                    self._declare_queue(queue, anew=is_broken)
                self.c.add_task_queue(queue)
        except self.c.channel_errors as error:
            self._note_refusal(queue, _describe_refusal(queue, error))
            self._undo_consume(queue)
        except self.c.connection_errors:
            if self.is_amqp:
                self._note_refusal(
                    queue, "its queue breaks the connection: it is deleted and declared again."
                ).breaks += 1
            raise
        else:
            self._refused.pop(queue, None)

    def stop_consuming_queue(self, queue: str) -> None:
        self._marks = {name: mark for name, mark in self._marks.items() if name != queue}
        self.c.cancel_task_queue(queue)

    def forget_queues(self) -> None:
        """Forget the consumed queues, since the connection is lost or closed: the next one begins with none."""
        self._marks = {}
        self.c.app.amqp.queues.deselect(list(self.consumed_queues))

    @property
    def consumed_queues(self) -> set[str]:
        """The consumed queues that belong to models: a worker may consume others beside them."""
        return {queue for queue in self.c.app.amqp.queues.consume_from if address.is_of_model(queue)}

    def remove_marks(self) -> None:
        """Delete this worker's marks, since it stops for good."""
        if self.is_amqp and self.c.connection:
            with self.c.connection.channel() as channel:
                for queue in self.consumed_queues:
                    channel.exchange_delete(self._make_mark_name(queue))

    def explain_unconsumed(self, specs: Catalog) -> dict[str, str]:
        """Return, by model, the reason why its queue is not consumed."""
        return {name: self._refused[spec.queue].why for name, spec in specs.items() if spec.queue in self._refused}

    def look_for_deleted_queues(self) -> None:
        """Find queues that were deleted. Raises `BrokerUnavailable`.

        It runs in another thread than the event loop, over a connection of its own.
        """
        marks = self._marks
        missing = other_broker_publisher.get_publisher().find_missing_exchanges(list(marks.values()))
        self._deleted = marks, frozenset(queue for queue, mark in marks.items() if mark in missing)

    def raise_if_queue_deleted(self) -> None:
        """Raise `ConnectionError` if a consumed queue was deleted, as if RabbitMQ had reported it.

        The worker then reconnects, and receives the messages that its consumers dropped.
        """
        marks, deleted = self._deleted
        if deleted and marks is self._marks:  # else the queues have changed since
            raise ConnectionError(f"deleted without notice: {', '.join(sorted(deleted))}")

    def _limit_wait(self, limit_s: float) -> AbstractContextManager[object]:
        """Limit the wait for an answer to `limit_s` seconds, since py-amqp sets no limit."""
        return self.c.connection.connection.transport.having_timeout(limit_s) if self.is_amqp else nullcontext()

    def _declare_queue(self, name: str, *, anew: bool) -> None:
        """Declare a queue and its mark on a channel of their own, since a refusal closes the channel."""
        with self.c.connection.channel() as channel:
            queue = self.c.app.amqp.queues[name].bind(channel)
            if anew:
                queue.delete()
            queue.declare()
            mark = Exchange(self._make_mark_name(name), type="fanout", durable=False, auto_delete=True).bind(channel)
            mark.declare()
            queue.bind_to(mark)
        self._marks = {**self._marks, name: mark.name}

    def _make_mark_name(self, queue: str) -> str:
        return f"{queue}.{self.c.hostname}"

    def _note_refusal(self, queue: str, why: str) -> Refusal:
        refusal = self._refused.setdefault(queue, Refusal())
        if why != refusal.why:
            logger.error("queue=%s is not consumed, tried again and again: %s", queue, why)
        refusal.why, refusal.retry_at = why, time.monotonic() + refusal.backoff.take_next_pause_s()
        return refusal

    def _undo_consume(self, queue: str) -> None:
        queues = self.c.app.amqp.queues
        if queue in queues.consume_from:
            queues.deselect([queue])
            if self.is_amqp:  # the refusal has closed the channel that all queues share
                raise ConnectionError(f"consuming {queue} was refused")


def _describe_refusal(queue: str, error: Exception) -> str:
    if isinstance(error, PreconditionFailed):
        return f"its queue exists with other arguments, delete it (rabbitmqctl delete_queue {queue}): {error}."
    return f"the broker refuses its queue: {error}."
