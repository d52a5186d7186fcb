"""The Celery strategy that puts the jobs of a message into the backlog, and the request that stands for the message."""

import logging
import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

from celery import Celery, signals
from celery.exceptions import InvalidTaskError
from celery.worker import state
from celery.worker.request import Request
from kombu.exceptions import ContentDisallowed, DecodeError

from inference import clock
from inference.batching.queue import Item, check_items
from inference.broker import kombu_json
from inference.broker.messages import MOST_PACKED
from inference.worker.celery_worker.consumer import JobConsumer
from inference.worker.dispatcher import Dispatcher

logger = logging.getLogger(__name__)

AS_SENT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # job ids; parsing one takes ten times as long


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
        self.time_start = clock.estimate_now_s()
        state.task_accepted(self)
        self.send_event("task-started")

    def note_job_end(self, error: str, runtime: float) -> None:
        """Note that one job of the message has ended, with the code `error` or "" for a success.

        The last job acknowledges the message. The task counts as failed if one of its jobs failed.
        """
        self.jobs_left -= 1
        self.error = error = error or self.error
        if self.jobs_left:
            self._free_prefetch_place()
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

    def remove_from_running_tasks(self) -> None:
        """Remove the message from Celery's running tasks, since its connection is gone.

        While the worker stops, the message stays there, so that a second signal can end what runs.
        """
        if state.should_stop is None and state.should_terminate is None:
            state.task_ready(self)

    def _free_prefetch_place(self) -> None:
        """Free the prefetch place of one job, if the transport counts jobs and not messages."""
        if free_prefetch_place := getattr(self.message.channel, "free_prefetch_place", None):
            free_prefetch_place(self.message.delivery_tag)


def strategy(task: Any, app: Celery, consumer: JobConsumer) -> Callable[..., None]:
    """Return the handler of `inference.run` messages, which puts their jobs into their model's batch queue."""
    if consumer.dispatch_loop is None:
        return _refuse
    dispatcher, dispatch_soon = consumer.dispatch_loop.dispatcher, consumer.dispatch_loop.dispatch_soon
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
        dispatch_soon()

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
        request = JobRequest(message, body=decode_payload(message), headers=message.headers, decoded=True, **common)
        hash(request.id)  # Celery looks the id up among the revoked ones
        return request
    except (ContentDisallowed, DecodeError):
        raise
    except Exception as error:
        raise InvalidTaskError(f"not a task message: {error!r}") from error


def decode_payload(message: Any) -> Any:
    """Return `message.payload`, which would take ten times as long for the messages that we send."""
    if (message.content_type, message.content_encoding) == ("application/json", "utf-8"):
        return kombu_json.loads(message.body)
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
            min(float(hints.get("created_at") or clock.estimate_now_s()), clock.estimate_now_s()),
            float(expires_at) if expires_at is not None else None,
            hints.get("alone") is True,
            str(hints["owner"]) if hints.get("owner") is not None else None,
        )
        jobs = [(request.args[0], hints.get("size", 1), hints.get("length", 1)), *others]
        items = [
            Item(_normalize_job_id(job_id), group, max(1, int(size)), max(1, int(length)), *common)
            for job_id, size, length in jobs
        ]
        check_items(items)
        return items, model
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidTaskError(f"not a job message: {error!r}") from error


def _normalize_job_id(job_id: str) -> str:
    """Return a job's id in canonical form. Raises errors that `make_items` handles."""
    return job_id if AS_SENT.fullmatch(job_id) else str(UUID(job_id))


def _is_ours(model: str, request: Request, dispatcher: Dispatcher) -> bool:
    """Return True if this worker takes jobs of `model` from the queue of this message.

    Jobs of a model that cannot be run now are taken only from the model's own queue: it is not consumed meanwhile, so
    they can be given back to it. Another queue would deliver them again at once.
    """
    if model in dispatcher.replicas.unpaused_models:
        return True
    return model in dispatcher.specs and request.delivery_info.get("routing_key") == dispatcher.specs[model].queue
