"""What the client asks of the service, over HTTP or from inside Django. Documents: docs/reference/api.md."""

from __future__ import annotations

import json
import logging
import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from batch_inference_client.errors import ClientError

logger = logging.getLogger("batch_inference_client")

T = TypeVar("T")
Document = dict[str, Any]

MOST_IDS = 500  # of one wait
FIRST_S, LONGEST_S = 0.2, 10.0


def dumps(value: Any) -> bytes:
    """Raises `ClientError`."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ClientError(f"inputs: no JSON can be made of them: {error}", code="invalid_input") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """`kind` is "delta": `text` follows; "restart": what came is void, and the text follows from its beginning; or
    "end": all has come, and `job` has succeeded."""

    kind: str
    text: str = ""
    id: str = ""  # to go on after it: `JobFuture.stream(after=…)`
    job: Document | None = None


class Service(ABC):
    """Each method asks once. Raises `ClientError`."""

    @abstractmethod
    def submit(self, job: Mapping[str, Any], *, key: str, wait_s: float = 0.0, answer_s: float = math.inf) -> Document:
        """The job of this idempotency key, finished if that is within `wait_s`. An answer that is lost on its way is
        waited for no longer than `answer_s`."""

    @abstractmethod
    def wait(self, ids: Sequence[str], *, wait_s: float) -> Document:
        """Those that are finished, as soon as there is one; `pause_s` is there where there was no room to wait."""

    @abstractmethod
    def job(self, job_id: str) -> Document: ...

    @abstractmethod
    def stream(self, job_id: str, *, after: str) -> Iterator[StreamEvent | None]:
        """Its events after that one, and now and then None, as a sign of life. It may break off before the end."""

    @abstractmethod
    def cancel(self, job_id: str) -> Document: ...

    @abstractmethod
    def submit_bulk(self, lines: Sequence[bytes], *, terms: Mapping[str, Any], key: str) -> Document:
        """A job for each line, which is the JSON of its inputs and parameters."""

    @abstractmethod
    def bulk(self, bulk_id: str) -> Document: ...

    @abstractmethod
    def cancel_bulk(self, bulk_id: str) -> Document: ...

    @abstractmethod
    def models(self) -> list[Document]: ...

    @abstractmethod
    def ready(self) -> Document: ...

    def once_stored(self, then: Callable[[], None], *, otherwise: Callable[[], None]) -> None:
        """Call `then` when others can see what this thread submitted, or `otherwise` when nobody ever will."""
        then()

    def check_wait(self) -> None:
        """Raises `ClientError` where this thread would wait for ever."""
        return

    @abstractmethod
    def reconnect(self) -> None:
        """In a process that was forked: the connections that there are belong to the other one."""

    @abstractmethod
    def close(self) -> None: ...


class Pauses:
    """Between tries: what `Retry-After` says, or from `FIRST_S` twice as long each time up to `LONGEST_S`; a fifth more
    or less at random."""

    def __init__(self) -> None:
        self._pause_s = FIRST_S

    def after_s(self, error: ClientError, give_up_at: float) -> float:
        """Raises `error` when trying again does not help, or would be too late."""
        pause_s, self._pause_s = self._pause_s * random.uniform(0.8, 1.2), min(2 * self._pause_s, LONGEST_S)
        if error.retry_after_s:  # 0 is no pause, and would be asked again and again
            pause_s = error.retry_after_s * random.uniform(1.0, 1.2)
        if not error.passing or time.monotonic() + pause_s > give_up_at:
            raise error
        level = logging.WARNING if error.retry_after_s is None else logging.INFO  # that is how room is waited for
        logger.log(level, "%s Trying again in %.1f s.", error, pause_s)
        return pause_s

    def reset(self) -> None:
        self._pause_s = FIRST_S


def patiently(call: Callable[[], T], *, limit_s: float, until: float = math.inf) -> T:
    """What `call` returns, tried again while its error is passing: for `limit_s` since the first, and not past `until`,
    a monotonic time. A first answer that never came may have taken longer. Raises `ClientError`."""
    pauses = Pauses()
    give_up_at: float | None = None
    while True:
        try:
            return call()
        except ClientError as error:
            give_up_at = min(time.monotonic() + limit_s, until) if give_up_at is None else give_up_at
            pause_s = pauses.after_s(error, give_up_at)
        time.sleep(pause_s)
