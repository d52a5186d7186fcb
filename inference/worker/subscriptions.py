"""Which queues a worker consumes. The broker may refuse one, and RabbitMQ deletes one without a word to its consumers.

Belongs to the worker's event loop, but for `find_deleted`.
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

from inference.broker import address, anybroker, queues
from inference.catalog.specs import Catalog
from inference.failures import Pauses

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
ANSWER_S = 4.0  # then the worker connects again
DELETED_S = 10.0  # the same, once it has a queue deleted of which little is left: RabbitMQ takes its time
BREAKS = 2  # then it is the queue, and not the broker, that cannot be used


@dataclass(slots=True)
class Refusal:
    why: str = ""
    retry_at: float = 0.0  # monotonic
    breaks: int = 0  # of the connection, when the queue was asked for
    pauses: Pauses = field(default_factory=lambda: Pauses(first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S))


class Subscriptions:
    """Lives over reconnects.

    When a queue of RabbitMQ before 4.0 is deleted and made anew at once, its consumers hear nothing, and drop the new
    messages as doubles of old ones. So each queue is bound to a mark: an exchange of this worker's own, which goes
    with the queue's last binding.

    A quorum queue that RabbitMQ could not recover after a crash, since it was new then, gives no answer, or RabbitMQ
    ends the connection that asks for it. It is deleted, by force where nothing of it is left, and made anew: the rows
    tell which messages are missing.
    """

    def __init__(self, c: Any) -> None:
        self.is_amqp = c.conninfo.transport.driver_type == "amqp"
        self.c = c
        self._refused: dict[str, Refusal] = {}  # by queue
        self._marks: Mapping[str, str] = {}  # exchanges, by queue; replaced as a whole
        self._deleted: tuple[Mapping[str, str], frozenset[str]] = {}, frozenset()  # of which marks, and the queues

    def begin(self, queue: str) -> None:
        """Nothing happens while the pause after a refusal lasts. A refusal concerns no other queue.

        Raises what a lost connection raises, also when the queue gives no answer.
        """
        known = self.c.app.amqp.queues
        if queue not in known:  # of a model that has come since this worker started
            known.add(queues.declared(queue, settings.SERVICE_PREFIX, settings.CELERY_BROKER_URL))
        refusal = self._refused.get(queue, Refusal())
        if time.monotonic() < refusal.retry_at:
            return
        try:
            is_broken = refusal.breaks >= BREAKS
            with self._in_time(DELETED_S if is_broken else ANSWER_S):
                if self.is_amqp:
                    self._declare(queue, anew=is_broken)
                self.c.add_task_queue(queue)
        except self.c.channel_errors as error:
            self._refuse(queue, _told(queue, error))
            self._undo(queue)
        except self.c.connection_errors:
            if self.is_amqp:
                self._refuse(queue, "its queue breaks the connection: it is deleted and declared again.").breaks += 1
            raise
        else:
            self._refused.pop(queue, None)

    def end(self, queue: str) -> None:
        self._marks = {name: mark for name, mark in self._marks.items() if name != queue}
        self.c.cancel_task_queue(queue)

    def forget(self) -> None:
        """The connection is gone, or is left: the next begins with no queue."""
        self._marks = {}
        self.c.app.amqp.queues.deselect(list(self.consumed))

    @property
    def consumed(self) -> set[str]:
        """The queues of models that are consumed: a worker may have others beside."""
        return {queue for queue in self.c.app.amqp.queues.consume_from if address.is_of_model(queue)}

    def remove_marks(self) -> None:
        """The worker leaves for good."""
        if self.is_amqp and self.c.connection:
            with self.c.connection.channel() as channel:
                for queue in self.consumed:
                    channel.exchange_delete(self._mark(queue))

    def why_not(self, specs: Catalog) -> dict[str, str]:
        """By model: why its queue is not consumed."""
        return {name: self._refused[spec.queue].why for name, spec in specs.items() if spec.queue in self._refused}

    def find_deleted(self) -> None:
        """From another thread, over a connection of its own. Raises `BrokerUnavailable`."""
        marks = self._marks
        missing = anybroker.broker().missing_exchanges(list(marks.values()))
        self._deleted = marks, frozenset(queue for queue, mark in marks.items() if mark in missing)

    def raise_if_deleted(self) -> None:
        """As if RabbitMQ had said so: the worker connects again, and gets what its consumers dropped."""
        marks, deleted = self._deleted
        if deleted and marks is self._marks:  # else the queues are others by now
            raise ConnectionError(f"deleted without notice: {', '.join(sorted(deleted))}")

    def _in_time(self, limit_s: float) -> AbstractContextManager[object]:
        """py-amqp waits for an answer without end."""
        return self.c.connection.connection.transport.having_timeout(limit_s) if self.is_amqp else nullcontext()

    def _declare(self, name: str, *, anew: bool) -> None:
        """On a channel of its own, which a refusal closes."""
        with self.c.connection.channel() as channel:
            queue = self.c.app.amqp.queues[name].bind(channel)
            if anew:
                queue.delete()
            queue.declare()
            mark = Exchange(self._mark(name), type="fanout", durable=False, auto_delete=True).bind(channel)
            mark.declare()
            queue.bind_to(mark)
        self._marks = {**self._marks, name: mark.name}

    def _mark(self, queue: str) -> str:
        return f"{queue}.{self.c.hostname}"

    def _refuse(self, queue: str, why: str) -> Refusal:
        refusal = self._refused.setdefault(queue, Refusal())
        if why != refusal.why:
            logger.error("queue=%s is not consumed, tried again and again: %s", queue, why)
        refusal.why, refusal.retry_at = why, time.monotonic() + refusal.pauses.next_s()
        return refusal

    def _undo(self, queue: str) -> None:
        queues = self.c.app.amqp.queues
        if queue in queues.consume_from:
            queues.deselect([queue])
            if self.is_amqp:  # consuming was refused, which has closed the channel of all queues
                raise ConnectionError(f"consuming {queue} was refused")


def _told(queue: str, error: Exception) -> str:
    if isinstance(error, PreconditionFailed):
        return f"its queue exists with other arguments, delete it (rabbitmqctl delete_queue {queue}): {error}."
    return f"the broker refuses its queue: {error}."
