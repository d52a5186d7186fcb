"""The batching consumer: a Celery strategy that handles messages, and a bootstep that drives the worker."""

import functools
import logging
import re
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from celery import Celery, bootsteps, signals
from celery.exceptions import InvalidTaskError
from celery.worker import state
from celery.worker.consumer import Consumer
from celery.worker.request import Request
from kombu.common import ignore_errors
from kombu.exceptions import ContentDisallowed, DecodeError

from inference import clock
from inference.batching.queue import Item, check_items
from inference.broker import address, json_types
from inference.broker.messages import MOST_PACKED
from inference.worker.celery_worker.subscriptions import Subscriptions
from inference.worker.dispatch import Dispatcher

logger = logging.getLogger(__name__)

AS_SENT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # job ids; parsing one takes ten times as long
LONGEST_AWAY_S = 4.0  # the longest pause between two tries to reach the broker again
SWEEP_S = 0.5  # within this a dead child process is noticed and a time limit enforced


class JobRequest(Request):
    """A message of one job or of several.

    The jobs of a batch share a child process, so revoking one never kills the process. Jobs are cancelled on their row.
    """

    jobs_left = 1  # jobs that have not ended; the last acknowledges the message, the first given back rejects it
    error = ""
    worker_pid: int | None

    def terminate(self, pool: Any, signal: Any = None) -> None:
        logger.warning("job=%s is cancelled, its process is not ended: it runs others too", self.id)

    def report_received(self) -> None:
        self.send_event(
            "task-received",
            name=self.name,
            args=self.argsrepr,
            kwargs=self.kwargsrepr,
            root_id=self.root_id,
            parent_id=self.parent_id,
            retries=0,
            eta=None,
            expires=None,
        )

    def report_started(self, pid: int) -> None:
        """Report the message's task as started in the child process `pid`.

        Each job of the message calls this; a repeated call for the same process does nothing.
        """
        if self.worker_pid == pid:
            return
        self.worker_pid = pid
        self.time_start = clock.time_s()
        state.task_accepted(self)
        self.send_event("task-started")

    def note_job_end(self, error: str, runtime: float) -> None:
        """Note that one job of the message has ended, with the code `error` or "" for a success.

        The last job acknowledges the message. The task counts as failed if one of its jobs failed.
        """
        self.jobs_left -= 1
        self.error = error = error or self.error
        if self.jobs_left:
            self._make_room()
            return
        state.task_ready(self)
        self.acknowledge()
        if error:
            self.send_event("task-failed", exception=error, traceback="")
        else:
            self.send_event("task-succeeded", result=None, runtime=runtime)

    def give_back_message(self) -> None:
        """Return the message to its queue. No other worker claims its jobs that have ended or run meanwhile."""
        state.task_ready(self)
        self.reject(requeue=True)

    def forget_message(self) -> None:
        """Remove the message from Celery's running tasks, since its connection is gone.

        While the worker stops, the message stays there, so that a second signal can end what runs.
        """
        if state.should_stop is None and state.should_terminate is None:
            state.task_ready(self)

    def _make_room(self) -> None:
        """Free the prefetch place of one job, if the transport counts jobs and not messages."""
        if make_room := getattr(self.message.channel, "make_room", None):
            make_room(self.message.delivery_tag)


def strategy(task: Any, app: Celery, consumer: Any) -> Callable[..., None]:
    """Return the handler of `inference.run` messages, which puts their jobs into their model's batch queue."""
    if consumer.dispatcher is None:
        return _refuse
    dispatcher: Dispatcher = consumer.dispatcher
    common = {
        "app": app, "task": task, "hostname": consumer.hostname, "eventer": consumer.event_dispatcher,
        "connection_errors": consumer.connection_errors,
    }  # fmt: skip

    def on_message(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **kwargs: Any) -> None:
        # `ack` and `reject` wait for the next turn of Celery's event loop, which turns no more as the worker leaves.
        request = make_request(message, on_ack=message.ack_log_error, on_reject=message.reject_log_error, **common)
        items, model = make_items(request, dispatcher)
        is_revoked = request.id in state.revoked and len(items) == 1  # for several jobs the rows decide
        if (request.expires or is_revoked) and request.revoked():
            return
        request.jobs_left = len(items)
        signals.task_received.send(sender=consumer, request=request)
        request.report_received()
        state.task_reserved(request)
        for callback in callbacks or ():
            callback(request)
        for item in items:
            dispatcher.backlog.hold_job(item, model, request)
        consumer.dispatch_soon()

    return on_message


def _refuse(*arguments: Any, **kwargs: Any) -> None:
    """Refuse a message on a plain worker, which has no models, by raising `InvalidTaskError`.

    Celery then logs and drops the message, and the reconciler sends another.
    """
    raise InvalidTaskError("no models are served by this worker")


def make_request(message: Any, **common: Any) -> JobRequest:
    """Return the request of a message.

    Raises only errors that Celery answers by dropping the message with one log line: any other would end the worker.
    """
    try:
        request = JobRequest(message, body=read_payload(message), headers=message.headers, decoded=True, **common)
        hash(request.id)  # Celery looks the id up among the revoked ones
        return request
    except (ContentDisallowed, DecodeError):
        raise
    except Exception as error:
        raise InvalidTaskError(f"not a task message: {error!r}") from error


def read_payload(message: Any) -> Any:
    """Return `message.payload`, which would take ten times as long for the messages that we send."""
    if (message.content_type, message.content_encoding) == ("application/json", "utf-8"):
        return json_types.loads(message.body)
    return message.payload


def make_items(request: Request, dispatcher: Dispatcher) -> tuple[list[Item], str]:
    """Return the queue items of one message, built from its checked hints, and their model.

    Raises `InvalidTaskError` for an invalid message, which Celery then logs and drops.
    """
    try:
        hints = request.kwargs
        others, model = hints.get("others", ()), hints["model"]
        if len(others) >= MOST_PACKED:
            raise ValueError(f"{len(others)} other jobs")
        if not _is_ours(model, request, dispatcher):  # such as the model of a forged message
            raise ValueError(f"no model {model!r} is served here")
        expires_at = hints.get("expires_at")
        group = str(hints.get("group", ""))
        common = (
            int(hints.get("priority", 2)),
            min(float(hints.get("created_at") or clock.time_s()), clock.time_s()),
            float(expires_at) if expires_at is not None else None,
            hints.get("alone") is True,
            str(hints["owner"]) if hints.get("owner") is not None else None,
        )
        jobs = [(request.args[0], hints.get("size", 1), hints.get("length", 1)), *others]
        items = [
            Item(_canonical(job_id), group, max(1, int(size)), max(1, int(length)), *common)
            for job_id, size, length in jobs
        ]
        check_items(items)
        return items, model
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidTaskError(f"not a job message: {error!r}") from error


def _canonical(job_id: str) -> str:
    """Return a job's id in canonical form. Raises errors that `make_items` handles."""
    return job_id if AS_SENT.fullmatch(job_id) else str(UUID(job_id))


def _is_ours(model: str, request: Request, dispatcher: Dispatcher) -> bool:
    """Return True if this worker takes jobs of `model` from the queue of this message.

    Jobs of a model that cannot be run now are taken only from the model's own queue: it is not consumed meanwhile, so
    they can be given back to it. Another queue would deliver them again at once.
    """
    if model in dispatcher.replicas.serving_models:
        return True
    return model in dispatcher.specs and request.delivery_info.get("routing_key") == dispatcher.specs[model].queue


class JobConsumer(Consumer):
    """A consumer without the 28 queues that Celery declares beside quorum queues for delayed tasks.

    It finds a broker that was away again within `LONGEST_AWAY_S`.
    """

    class Blueprint(Consumer.Blueprint):
        default_steps = [step for step in Consumer.Blueprint.default_steps if not step.endswith(":DelayedDelivery")]

    def ensure_connected(self, conn: Any) -> Any:
        """Connect to the broker, with pauses of at most `LONGEST_AWAY_S` between the tries.

        Celery's own pauses grow to half a minute, for which no job would be served after the broker is back.
        """
        conn.ensure_connection = functools.partial(conn.ensure_connection, interval_max=LONGEST_AWAY_S)
        return super().ensure_connected(conn)


class BatchingStep(bootsteps.StartStopStep):
    """The bootstep that owns the dispatcher, sizes the prefetch, and drives both from the event loop."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        self.timer: Any = None
        c.dispatcher = None
        if not self.include_if(c):  # a plain worker, of other queues: it drops the messages of jobs
            return
        replicas = c.controller.replicas
        c.dispatcher = Dispatcher(replicas, lambda: c.pool.replicas, c.controller.unfetched)
        c.dispatcher.on_rows_left = c.controller.housekeeping.requeue_batches_soon
        c.dispatcher.on_expired = c.controller.housekeeping.mark_expired_soon
        c.dispatch_soon = lambda: self._dispatch_soon(c)
        c.initial_prefetch_count = c.dispatcher.prefetch_count
        c.controller.heartbeat.snapshot = c.dispatcher.make_snapshot
        self.subscriptions = Subscriptions(c)
        if self.subscriptions.is_amqp:
            c.controller.housekeeping.chores.append(self.subscriptions.find_deleted_queues)
        self.reported: Any = None  # the state that the worker's row shows
        self._scheduled = False

    def include_if(self, c: Any) -> bool:
        return getattr(c.controller, "replicas", None) is not None

    def register_with_event_loop(self, c: Any, hub: Any) -> None:
        c.pool.replicas.on_idle, c.pool.replicas.has_open_batch = c.dispatch_soon, c.dispatcher.has_open_batch
        c.dispatcher.connected = True
        self._scheduled = False  # a scheduled call went with the loop of the broken connection
        c.dispatcher.looped_at = time.monotonic()  # the connection may break again before the first sweep
        c.dispatcher.answering_s = lambda: c.controller.heartbeat.answering_s
        hub.call_repeatedly(SWEEP_S, self._sweep, c)
        self.update_subscriptions(c)

    def stop(self, c: Any) -> None:
        if c.controller.heartbeat.leaving and c.task_consumer:
            ignore_errors(c, c.task_consumer.cancel)  # else a broker might deliver again what is given back
            ignore_errors(c, c.dispatcher.drain)
            ignore_errors(c, self.subscriptions.remove_marks)
        self.subscriptions.forget_queues()
        c.dispatcher.forget_messages()

    def _sweep(self, c: Any) -> None:
        self.subscriptions.raise_if_deleted()
        c.dispatcher.replicas.apply_intents(c.controller.heartbeat.intents)
        c.controller.served.follow_models_file(c.dispatcher.backlog.is_idle)
        c.dispatcher.lazy = c.controller.lazy.update_residency(c.dispatcher.backlog)
        c.pool.replicas.start_and_end_processes()
        self.update_subscriptions(c)
        c.dispatcher.end_stuck_and_expired()

    def update_subscriptions(self, c: Any) -> None:
        """Consume the queues of the models that a replica can run now, and no others.

        No queue is consumed while the dispatcher is not connected. Messages that came from a queue before it was left,
        or are on their way, go back to it.
        """
        dispatcher = c.dispatcher
        wanted = {address.queue_of(name) for name in dispatcher.replicas.serving_models if dispatcher.connected}
        consumed = self.subscriptions.consumed_queues
        for queue in consumed - wanted:
            self.subscriptions.stop_consuming_queue(queue)
        for queue in wanted - consumed:
            self.subscriptions.consume_queue(queue)
        dispatcher.refused = self.subscriptions.explain_unconsumed(dispatcher.specs)
        dispatcher.give_back_unrunnable_jobs()
        self._prefetch(c)
        replicas = dispatcher.replicas
        state = replicas.version, dispatcher.connected, dispatcher.refused, dispatcher.lazy
        if state != self.reported:
            self.reported = state
            c.controller.heartbeat.write_row_soon()

    def _prefetch(self, c: Any) -> None:
        """Set the prefetch count. On RabbitMQ a queue keeps the count with which its subscription began."""
        if c.initial_prefetch_count != c.dispatcher.prefetch_count:
            c.initial_prefetch_count = c.qos.value = c.dispatcher.prefetch_count
        if allow := getattr(getattr(c.task_consumer, "channel", None), "allow_patient", None):
            allow(*c.dispatcher.low_priority_prefetch)

    def _dispatch_soon(self, c: Any) -> None:
        """Schedule a dispatch once per turn of the event loop, so that messages that arrive together share a batch."""
        if not self._scheduled:
            self._scheduled = True
            c.hub.call_soon(self._dispatch, c)

    def _dispatch(self, c: Any) -> None:
        self._scheduled = False
        if c.pool.replicas is None:  # the worker stops, and the event loop runs its last callbacks
            return
        self.update_subscriptions(c)
        dispatcher = c.dispatcher
        dispatcher.send_next_calls()
        due_in_s = dispatcher.backlog.find_next_due_in_s()
        if due_in_s and dispatcher.pool.find_idle_pids():
            if self.timer is not None:
                self.timer.cancel()
            self.timer = c.timer.call_after(due_in_s, self._dispatch, (c,))
