"""The calls that the client makes to the service, over HTTP or from inside Django.

Documents are those of docs/reference/api.md.
"""

from __future__ import annotations

import enum
import json
import logging
import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from batch_inference_client.errors import ClientError

logger = logging.getLogger("batch_inference_client")

T = TypeVar("T")
Document = dict[str, Any]

MOST_IDS = 500  # ids of jobs in one call of `Service.wait`
FIRST_S, LONGEST_S = 0.2, 10.0  # bounds of the pauses between tries


class JobStatus(enum.StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


WAITING = (JobStatus.QUEUED, JobStatus.RUNNING)
FINISHED = (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.EXPIRED)


def dumps(value: object) -> bytes:
    """Return a value as JSON. Raises `ClientError` if no JSON can be made of it."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ClientError(f"inputs: no JSON can be made of them: {error}", code="invalid_input") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """An event of a stream.

    Its `kind` is "delta" if `text` follows the text so far. It is "restart" if the text so far is void, and the text
    follows from its beginning. It is "end" if all text has come, and `job` has succeeded.
    """

    kind: str
    text: str = ""
    id: str = ""  # to go on after this event: `JobFuture.stream(after=…)`
    job: Document | None = None


class Service(ABC):
    """The service as the client calls it. Each method makes one try. Raises `ClientError`."""

    @abstractmethod
    def submit(self, job: Mapping[str, Any], *, key: str, wait_s: float = 0.0, answer_s: float = math.inf) -> Document:
        """Return the job of this idempotency key, which is new or was submitted before.

        It is finished if that takes `wait_s` at most. An answer that is lost on its way is waited for no longer than
        `answer_s`.
        """

    @abstractmethod
    def wait(self, ids: Sequence[str], *, wait_s: float) -> Document:
        """Return those of the jobs that are finished, as soon as there is one or `wait_s` is over.

        The document has `pause_s` if the service had no room to wait.
        """

    @abstractmethod
    def job(self, job_id: str) -> Document: ...

    @abstractmethod
    def stream(self, job_id: str, *, after: str) -> Iterator[StreamEvent | None]:
        """Yield the job's events after the one with the id `after`, and now and then None as a sign of life.

        The stream may break off before its end.
        """

    @abstractmethod
    def cancel(self, job_id: str) -> Document: ...

    @abstractmethod
    def submit_bulk(self, lines: Sequence[bytes], *, terms: Mapping[str, Any], key: str) -> Document:
        """Submit a bulk with a job for each line, which is the JSON of its inputs and parameters."""

    @abstractmethod
    def bulk(self, bulk_id: str) -> Document: ...

    @abstractmethod
    def cancel_bulk(self, bulk_id: str) -> Document: ...

    @abstractmethod
    def upload_file(self, path: Path) -> Document:
        """Store the file at a path, as the input of batches. Raises also `OSError`, if the file cannot be read."""

    @abstractmethod
    def create_batch(self, batch: Mapping[str, Any], *, key: str) -> Document:
        """Return the batch of this idempotency key, which is new or was created before."""

    @abstractmethod
    def batch(self, batch_id: str) -> Document: ...

    @abstractmethod
    def cancel_batch(self, batch_id: str) -> Document: ...

    @abstractmethod
    def file_content(self, file_id: str) -> Iterator[bytes]: ...

    @abstractmethod
    def batch_output(self, batch_id: str) -> Iterator[bytes]: ...

    @abstractmethod
    def models(self) -> list[Document]: ...

    @abstractmethod
    def ready(self) -> Document: ...

    def call_once_stored(self, then: Callable[[], None], *, otherwise: Callable[[], None]) -> None:
        """Call `then` once others can see what this thread submitted, or `otherwise` if they never will."""
        then()

    def refuse_endless_wait(self) -> None:
        """Check if this thread may wait for a job. Raises `ClientError` if it would wait for ever."""
        return

    @abstractmethod
    def reconnect(self) -> None:
        """Drop the connections in a process that was forked, as they belong to its parent."""

    @abstractmethod
    def close(self) -> None: ...


class Pauses:
    """The pauses between tries.

    A pause is as long as `Retry-After` says, and up to a fifth longer at random. Without that header the first pause is
    `FIRST_S`, and each one is twice as long as the one before, up to `LONGEST_S`, and a fifth more or less at random.
    """

    def __init__(self) -> None:
        self._pause_s = FIRST_S

    def after_s(self, error: ClientError, give_up_at: float) -> float:
        """Return the seconds to pause after this error.

        Raises `error` if trying again does not help, or would be later than `give_up_at`, a monotonic time.
        """
        pause_s, self._pause_s = self._pause_s * random.uniform(0.8, 1.2), min(2 * self._pause_s, LONGEST_S)
        if error.retry_after_s:  # not 0, which is no pause: the client would ask again and again
            pause_s = error.retry_after_s * random.uniform(1.0, 1.2)
        if not error.passing or time.monotonic() + pause_s > give_up_at:
            raise error
        level = logging.WARNING if error.retry_after_s is None else logging.INFO  # Retry-After is how to wait for room
        logger.log(level, "%s Trying again in %.1f s.", error, pause_s)
        return pause_s

    def reset(self) -> None:
        self._pause_s = FIRST_S


def retry_while_passing(call: Callable[[], T], *, limit_s: float, until: float = math.inf) -> T:
    """Return what `call` returns. It is tried again while its error is passing.

    It is tried for `limit_s` since the first error, and not past `until`, a monotonic time. A first answer that never
    came may have taken longer. Raises `ClientError`.
    """
    pauses = Pauses()
    give_up_at: float | None = None
    while True:
        try:
            return call()
        except ClientError as error:
            give_up_at = min(time.monotonic() + limit_s, until) if give_up_at is None else give_up_at
            pause_s = pauses.after_s(error, give_up_at)
        time.sleep(pause_s)
