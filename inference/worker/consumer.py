"""The batching consumer: a Celery strategy for the messages, and a bootstep for the life of the worker."""

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
from inference.batching.queue import Item, check
from inference.broker import address, json_types
from inference.broker.messages import MOST_PACKED
from inference.worker.dispatch import Dispatcher
from inference.worker.subscriptions import Subscriptions

logger = logging.getLogger(__name__)

AS_SENT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # ids; to read one takes ten times as long
LONGEST_AWAY_S = 4.0  # between two tries to reach the broker again
SWEEP_S = 0.5  # a dead child is noticed, and a time limit enforced, within this


class JobRequest(Request):
    """One message, of one job or of several. Batch-mates share a child, so revoking never kills it; jobs are cancelled
    on their row."""

    jobs_left = 1  # that have not ended; it is acknowledged with the last, or given back with the first that is
    error = ""
    worker_pid: int | None

    def terminate(self, pool: Any, signal: Any = None) -> None:
        logger.warning("job=%s is cancelled, its process is not ended: it runs others too", self.id)

    def received(self) -> None:
        self.send_event(
            "task-received", name=self.name, args=self.argsrepr, kwargs=self.kwargsrepr, root_id=self.root_id,
            parent_id=self.parent_id, retries=0, eta=None, expires=None,
        )  # fmt: skip

    def started(self, pid: int) -> None:
        """Of several jobs, each says so."""
        if self.worker_pid == pid:
            return
        self.worker_pid = pid
        self.time_start = clock.time_s()
        state.task_accepted(self)
        self.send_event("task-started")

    def finished(self, error: str, runtime: float) -> None:
        """One of its jobs."""
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

    def give_back(self) -> None:
        """What has ended of it meanwhile, or runs, is claimed by nobody else."""
        state.task_ready(self)
        self.reject(requeue=True)

    def forget(self) -> None:
        """Tell Celery, which counts it as running, that its connection is gone. As the worker leaves it is to know what
        runs, for a second signal to end."""
        if state.should_stop is None and state.should_terminate is None:
            state.task_ready(self)

    def _make_room(self) -> None:
        """For another job, where the transport counts those and not messages."""
        if make_room := getattr(self.message.channel, "make_room", None):
            make_room(self.message.delivery_tag)


def strategy(task: Any, app: Celery, consumer: Any) -> Callable[..., None]:
    """What to do with a message of `inference.run`: put its job into its model's batch queue."""
    if consumer.dispatcher is None:
        return _refuse
    dispatcher: Dispatcher = consumer.dispatcher
    common = {
        "app": app, "task": task, "hostname": consumer.hostname, "eventer": consumer.event_dispatcher,
        "connection_errors": consumer.connection_errors,
    }  # fmt: skip

    def on_message(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **kwargs: Any) -> None:
        request = request_of(message, on_ack=ack, on_reject=reject, **common)
        items, model = items_of(request, dispatcher)
        is_revoked = request.id in state.revoked and len(items) == 1  # of several the rows tell
        if (request.expires or is_revoked) and request.revoked():
            return
        request.jobs_left = len(items)
        signals.task_received.send(sender=consumer, request=request)
        request.received()
        state.task_reserved(request)
        for callback in callbacks or ():
            callback(request)
        for item in items:
            dispatcher.backlog.add(item, model, request)
        consumer.dispatch_soon()

    return on_message


def _refuse(*arguments: Any, **kwargs: Any) -> None:
    """A plain worker has no models: Celery logs and drops the message, the reconciler sends another."""
    raise InvalidTaskError("no models are served by this worker")


def request_of(message: Any, **common: Any) -> JobRequest:
    """Raises what Celery answers by dropping the message with one log line: anything else would end the worker."""
    try:
        request = JobRequest(message, body=payload_of(message), headers=message.headers, decoded=True, **common)
        hash(request.id)  # Celery looks it up among what was revoked
        return request
    except (ContentDisallowed, DecodeError):
        raise
    except Exception as error:
        raise InvalidTaskError(f"not a task message: {error!r}") from error


def payload_of(message: Any) -> Any:
    """As `message.payload`, which takes ten times as long for what we send."""
    if (message.content_type, message.content_encoding) == ("application/json", "utf-8"):
        return json_types.loads(message.body)
    return message.payload


def items_of(request: Request, dispatcher: Dispatcher) -> tuple[list[Item], str]:
    """The hints of one message, checked. Raises `InvalidTaskError`: Celery then logs and drops the message."""
    try:
        hints = request.kwargs
        others, model = hints.get("others", ()), hints["model"]
        if len(others) >= MOST_PACKED:
            raise ValueError(f"{len(others)} other jobs")
        if not _is_ours(model, request, dispatcher):  # such as one of a forged message
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
        check(items)
        return items, model
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidTaskError(f"not a job message: {error!r}") from error


def _canonical(job_id: str) -> str:
    """Raises what `items_of` expects."""
    return job_id if AS_SENT.fullmatch(job_id) else str(UUID(job_id))


def _is_ours(model: str, request: Request, dispatcher: Dispatcher) -> bool:
    """What cannot be run now is given back to its queue, which is left meanwhile: another would bring it at once."""
    if model in dispatcher.replicas.serving:
        return True
    return model in dispatcher.specs and request.delivery_info.get("routing_key") == dispatcher.specs[model].queue


class JobConsumer(Consumer):
    """Without the queues that Celery declares beside quorum queues, for tasks that start later: 28 of them. A broker
    that was away is found again within `LONGEST_AWAY_S`."""

    class Blueprint(Consumer.Blueprint):
        default_steps = [step for step in Consumer.Blueprint.default_steps if not step.endswith(":DelayedDelivery")]

    def ensure_connected(self, conn: Any) -> Any:
        """Celery's own pauses grow to half a minute: so long nothing would be served after the broker is back."""
        conn.ensure_connection = functools.partial(conn.ensure_connection, interval_max=LONGEST_AWAY_S)
        return super().ensure_connected(conn)


class BatchingStep(bootsteps.StartStopStep):
    """Owns the dispatcher, sizes the prefetch, and drives both from the event loop."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        self.timer: Any = None
        c.dispatcher = None
        if not self.include_if(c):  # a plain worker, of other queues: it drops what is not for it
            return
        replicas = c.controller.replicas
        c.dispatcher = Dispatcher(replicas, lambda: c.pool.replicas, c.controller.unfetched)
        c.dispatcher.on_rows_left = c.controller.housekeeping.give_back
        c.dispatcher.on_expired = c.controller.housekeeping.expire_soon
        c.dispatch_soon = lambda: self._dispatch_soon(c)
        c.initial_prefetch_count = c.dispatcher.prefetch
        c.controller.heartbeat.snapshot = c.dispatcher.snapshot
        self.subscriptions = Subscriptions(c)
        if self.subscriptions.is_amqp:
            c.controller.housekeeping.chores.append(self.subscriptions.find_deleted)
        self.reported: Any = None  # the state that the row has
        self._scheduled = False

    def include_if(self, c: Any) -> bool:
        return getattr(c.controller, "replicas", None) is not None

    def register_with_event_loop(self, c: Any, hub: Any) -> None:
        c.pool.replicas.on_idle, c.pool.replicas.keeps = c.dispatch_soon, c.dispatcher.keeps
        c.dispatcher.connected = True
        self._scheduled = False  # what was to be done soon went with the loop of the connection that broke
        c.dispatcher.looped_at = time.monotonic()  # no sweep may come before the connection breaks again
        c.dispatcher.answering_s = lambda: c.controller.heartbeat.answering_s
        hub.call_repeatedly(SWEEP_S, self._sweep, c)
        self.follow(c)

    def stop(self, c: Any) -> None:
        if c.controller.heartbeat.leaving and c.task_consumer:
            ignore_errors(c, c.task_consumer.cancel)  # else a broker might hand us again what we give back
            ignore_errors(c, c.dispatcher.leave)
            ignore_errors(c, self.subscriptions.remove_marks)
        self.subscriptions.forget()
        c.dispatcher.forget_messages()

    def _sweep(self, c: Any) -> None:
        self.subscriptions.raise_if_deleted()
        c.dispatcher.replicas.apply_intents(c.controller.heartbeat.intents)
        c.controller.served.follow(c.dispatcher.backlog.is_idle)
        c.dispatcher.lazy = c.controller.lazy.follow(c.dispatcher.backlog)
        c.pool.maintain_pool()  # the pool itself may notice a dead child only after 5 s
        c.pool.replicas.look_after()
        self.follow(c)
        c.dispatcher.sweep()

    def follow(self, c: Any) -> None:
        """Consume the queues of the models that a replica can run now, and no other; none once the worker has left all.
        What a queue brought before it was left, or has on its way, goes back to it."""
        dispatcher = c.dispatcher
        wanted = {address.queue_of(name) for name in dispatcher.replicas.serving if dispatcher.connected}
        consumed = self.subscriptions.consumed
        for queue in consumed - wanted:
            self.subscriptions.end(queue)
        for queue in wanted - consumed:
            self.subscriptions.begin(queue)
        dispatcher.refused = self.subscriptions.why_not(dispatcher.specs)
        dispatcher.let_go()
        self._prefetch(c)
        replicas = dispatcher.replicas
        state = replicas.version, dispatcher.connected, dispatcher.refused, dispatcher.lazy
        if state != self.reported:
            self.reported = state
            c.controller.heartbeat.changed()

    def _prefetch(self, c: Any) -> None:
        """On RabbitMQ a queue keeps the count that its subscription began with."""
        if c.initial_prefetch_count != c.dispatcher.prefetch:
            c.initial_prefetch_count = c.qos.value = c.dispatcher.prefetch
        if allow := getattr(getattr(c.task_consumer, "channel", None), "allow_patient", None):
            allow(*c.dispatcher.patient)

    def _dispatch_soon(self, c: Any) -> None:
        """Once per turn of the loop: messages that arrive together are batched together."""
        if not self._scheduled:
            self._scheduled = True
            c.hub.call_soon(self._dispatch, c)

    def _dispatch(self, c: Any) -> None:
        self._scheduled = False
        if c.pool.replicas is None:  # the worker leaves, and the event loop runs its last callbacks
            return
        self.follow(c)
        dispatcher = c.dispatcher
        dispatcher.kick()
        due_in_s = dispatcher.backlog.due_in_s()
        if due_in_s and dispatcher.pool.idle():
            if self.timer is not None:
                self.timer.cancel()
            self.timer = c.timer.call_after(due_in_s, self._dispatch, (c,))
