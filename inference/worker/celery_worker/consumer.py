"""The consumer of a worker that has models, and the calls of its dispatcher by the event loop."""

import functools
from typing import Any

from celery import bootsteps
from celery.worker.consumer import Consumer
from kombu.common import ignore_errors

from inference.broker import address
from inference.worker.celery_worker.setup import find_service
from inference.worker.celery_worker.subscriptions import Subscriptions
from inference.worker.service import WorkerService

LONGEST_AWAY_S = 4.0  # the longest pause between two tries to reach the broker again
SWEEP_S = 0.5  # within this a dead child process is noticed and a time limit enforced


class JobConsumer(Consumer):
    """A consumer without the 28 queues that Celery declares beside quorum queues for delayed tasks.

    It finds a broker that was away again within `LONGEST_AWAY_S`.
    """

    class Blueprint(Consumer.Blueprint):
        default_steps = [step for step in Consumer.Blueprint.default_steps if not step.endswith(":DelayedDelivery")]

    dispatch_loop: "DispatchLoop | None" = None  # of a worker that has models
    initial_prefetch_count: int
    qos: Any = None  # Celery sets it with each connection.

    def ensure_connected(self, conn: Any) -> Any:
        """Connect to the broker, with pauses of at most `LONGEST_AWAY_S` between the tries.

        Celery's own pauses grow to half a minute, for which no job would be served after the broker is back.
        """
        conn.ensure_connection = functools.partial(conn.ensure_connection, interval_max=LONGEST_AWAY_S)
        return super().ensure_connected(conn)

    def set_prefetch_count(self, count: int) -> None:
        """Change the prefetch count. On RabbitMQ a queue keeps the count with which its subscription began."""
        if self.initial_prefetch_count != count:
            self.initial_prefetch_count = count
            if self.qos:
                self.qos.value = count


class BatchingStep(bootsteps.StartStopStep):
    """The bootstep that has the event loop call the dispatcher of a worker that has models."""

    requires = ("celery.worker.consumer.connection:Connection",)
    dispatch_loop: "DispatchLoop"

    def include_if(self, parent: JobConsumer) -> bool:
        return find_service(parent.controller) is not None

    def create(self, parent: JobConsumer) -> None:
        self.dispatch_loop = parent.dispatch_loop = DispatchLoop(parent, parent.controller.service)

    def register_with_event_loop(self, parent: JobConsumer, hub: Any) -> None:
        self.dispatch_loop.begin_connection(hub)

    def stop(self, parent: JobConsumer) -> None:
        self.dispatch_loop.clear_connection_state()


class DispatchLoop:
    """The calls of the dispatcher by Celery's event loop: twice a second, and soon after something gives it work.

    The consumed queues and the prefetch count follow the dispatcher.
    """

    def __init__(self, consumer: JobConsumer, service: WorkerService) -> None:
        self.service = service
        self.dispatcher = service.dispatcher
        self.subscriptions = Subscriptions(consumer)
        if self.subscriptions.is_amqp:
            service.housekeeping.add_chore(self.subscriptions.look_for_deleted_queues)
        self._consumer = consumer
        self._timer: Any = None
        self._reported: Any = None  # the state that the worker's row shows
        self._is_scheduled = False
        consumer.set_prefetch_count(self.dispatcher.prefetch_count)

    def begin_connection(self, hub: Any) -> None:
        self._is_scheduled = False  # a scheduled call went with the loop of the broken connection
        self.service.pool.register_with_loop(hub, self.dispatch_soon)
        self.dispatcher.note_connection()
        hub.call_repeatedly(SWEEP_S, self._sweep)
        self.update_subscriptions()

    def clear_connection_state(self) -> None:
        consumer = self._consumer
        if self.service.heartbeat.leaving and consumer.task_consumer:
            # Else a broker might deliver again what is given back.
            ignore_errors(consumer, consumer.task_consumer.cancel)
            ignore_errors(consumer, self.dispatcher.drain)
            ignore_errors(consumer, self.subscriptions.remove_marks)
        self.subscriptions.forget_queues()
        self.dispatcher.forget_messages()

    def dispatch_soon(self) -> None:
        """Schedule a dispatch once per turn of the event loop, so that messages that arrive together share a batch."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._consumer.hub.call_soon(self._dispatch)

    def update_subscriptions(self) -> None:
        """Consume the queues of the models that a replica can run now, and no others.

        No queue is consumed while the dispatcher is not connected. Messages that came from a queue before it was left,
        or are on their way, go back to it.
        """
        dispatcher, replicas = self.dispatcher, self.dispatcher.replicas
        wanted = {address.get_queue_name(name) for name in replicas.unpaused_models if dispatcher.connected}
        consumed = self.subscriptions.consumed_queues
        for queue in consumed - wanted:
            self.subscriptions.stop_consuming_queue(queue)
        for queue in wanted - consumed:
            self.subscriptions.consume_queue(queue)
        dispatcher.note_refused_queues(self.subscriptions.explain_unconsumed(dispatcher.specs))
        dispatcher.give_back_unrunnable_jobs()
        self._consumer.set_prefetch_count(dispatcher.prefetch_count)
        state = replicas.version, dispatcher.connected, dispatcher.refused, dispatcher.residency.report
        if state != self._reported:
            self._reported = state
            self.service.heartbeat.write_row_soon()

    def _sweep(self) -> None:
        self.subscriptions.raise_if_queue_deleted()
        self.service.follow_changes()
        self.update_subscriptions()
        self.dispatcher.end_stuck_and_expired(self.service.heartbeat.database_up_s)

    def _dispatch(self) -> None:
        self._is_scheduled = False
        if self.service.pool.is_closed:  # the worker stops, and the event loop runs its last callbacks
            return
        self.update_subscriptions()
        self.dispatcher.send_next_calls()
        pool = self.service.pool
        due_in_s = self.dispatcher.backlog.find_next_due_in_s() if pool.find_idle_pids() else None
        if waits_s := [wait_s for wait_s in (due_in_s, pool.find_next_load_in_s()) if wait_s]:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._consumer.timer.call_after(min(waits_s), self._dispatch)
