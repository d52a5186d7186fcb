"""The client: one input, a future, many inputs; each also for asyncio."""

from __future__ import annotations

import asyncio
import functools
import math
import os
import re
import threading
import time
import uuid
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sized
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from batch_inference_client import stream
from batch_inference_client.errors import ClientError, JobError
from batch_inference_client.futures import JobFuture
from batch_inference_client.http import Http
from batch_inference_client.mapping import Answer, Map, encode
from batch_inference_client.progress import Bar
from batch_inference_client.retrieval import Retrieval
from batch_inference_client.service import Document, Service, StreamEvent, patiently
from batch_inference_client.watch import Watch

T = TypeVar("T")

NAME = re.compile(r"[\x21-\x7e]{1,200}")
LONGEST_WAIT_S = 20.0  # of the request that submits; after it the job is among those that are waited for together
ASYNC_THREADS = 8  # that requests of asyncio may take at once; who awaits a job takes none
PATIENCE_S = 60.0
GRACE_S = 1.0  # past its time in which a call may still be answered


class BaseClient(Retrieval):
    """What the client does with a `Service`, for any number of threads. `patience_s` is for how long it tries again
    while the service is away, full, or asks to wait."""

    def __init__(self, service: Service, *, patience_s: float = PATIENCE_S) -> None:
        self.service, self.patience_s = service, patience_s
        self._start()
        clients.add(self)

    def _start(self) -> None:
        self._watch = Watch(self.service, patience_s=self.patience_s)
        self._threads = ThreadPoolExecutor(ASYNC_THREADS, thread_name_prefix="inference-client-async")

    def start_anew(self) -> None:
        """In a process that was forked, which has neither the threads nor, for itself, the connections of the other."""
        self.service.reconnect()
        self._start()

    def run(self, model: str, inputs: Any, *, timeout: float | None = None, **options: Any) -> Any:
        """The output. `inputs` is one input, or a list of several, whose output is a list. `options` as of `submit`.

        Raises `JobError` when there is none, `ClientError` when the job was not taken, and `TimeoutError` after
        `timeout` seconds: the job goes on.
        """
        began_at = time.monotonic()
        wait_s = LONGEST_WAIT_S if timeout is None else min(timeout, LONGEST_WAIT_S)
        future = self._future(self._submit(model, inputs, wait_s=wait_s, timeout=timeout, **options))
        try:
            return future.result(None if timeout is None else max(0.0, began_at + timeout - time.monotonic()))
        except TimeoutError:
            if future.done():
                raise
            raise _goes_on(future, timeout) from None
        except CancelledError:
            raise JobError.of(future.job) from None

    def submit(self, model: str, inputs: Any, **options: Any) -> JobFuture:
        """The job, once it is stored. `options`: `parameters`, `priority` ("high", "normal", "low"), `expires_in`
        (seconds), `webhook`, and `key`, an idempotency key of yours. Raises `ClientError`."""
        return self._future(self._submit(model, inputs, **options))

    def stream(self, model: str, inputs: Any, **options: Any) -> Iterator[StreamEvent]:
        """The text as it is generated, up to an event "end" whose `job` has the output; what breaks off is read on by
        itself. `options` as of `submit`. Raises `JobError`, `ClientError`."""
        return self._events(self._submit(model, inputs, **options)["id"])

    def job(self, job_id: str) -> JobFuture:
        """A job that was submitted before, by another program too. Raises `ClientError`."""
        return self._future(self._patiently(lambda: self.service.job(job_id)))

    def map(
        self,
        model: str,
        inputs: Iterable[Any],
        *,
        parameters: Mapping[str, Any] | None = None,
        ordered: bool = True,
        name: str | None = None,
        in_flight: int = 4000,
        priority: str = "low",
        expires_in: float | None = None,
        progress: bool = False,
    ) -> Iterator[Any]:
        """The output of each input in order, or in its place the `JobError` that it has instead. Not `ordered`: pairs
        of the input's number and that, as they come.

        At most `in_flight` inputs are read ahead. With a `name`, a program that was killed asks again for what it had
        asked before: no input runs twice, while the jobs are kept. Raises `ClientError`.
        """
        encoded = (encode(value, parameters) for value in inputs)
        terms = {"model": model, "priority": priority, **({"expires_in": expires_in} if expires_in is not None else {})}
        batches = self.map_encoded(encoded, terms, name=name, in_flight=in_flight, ordered=ordered)
        total = len(inputs) if isinstance(inputs, Sized) else None
        with Bar(total, shown=progress) as bar:
            for batch in batches:
                bar.add(batch)
                for place, answer in batch:
                    yield answer if ordered else (place, answer)

    def map_encoded(
        self,
        encoded: Iterable[Any],
        terms: Mapping[str, Any],
        *,
        name: str | None = None,
        in_flight: int = 4000,
        ordered: bool = True,
        skip: int = 0,
    ) -> Iterator[list[tuple[int, Answer]]]:
        """`map` of inputs that `encode` made, in batches with their places; the first `skip` are only compared."""
        if name is not None and not NAME.fullmatch(name):
            raise ClientError("name: must be 1 to 200 visible ASCII characters.", code="bad_request")
        if in_flight < 1:
            raise ClientError("in_flight: must be 1 or more.", code="bad_request")
        return Map(
            service=self.service, encoded=encoded, terms=terms, name=name or str(uuid.uuid4()), in_flight=in_flight,
            ordered=ordered, patience_s=self.patience_s, skip=skip,
        ).batches()  # fmt: skip

    def cancel(self, id: str) -> Document:
        """A job, or all of a bulk that is not finished. Raises `ClientError`."""
        return self._job_or_bulk(id, self.service.cancel, self.service.cancel_bulk)

    def look(self, id: str) -> Document:
        """A job, or how far a bulk is, as docs/reference/api.md describes them. Raises `ClientError`."""
        return self._job_or_bulk(id, self.service.job, self.service.bulk)

    def models(self) -> list[Document]:
        """What is served. Raises `ClientError`."""
        return self._patiently(self.service.models)

    def ready(self) -> Document:
        """Whether all of it is served, and the reasons if not. Raises `ClientError`."""
        return self._patiently(self.service.ready)

    # The same for asyncio

    async def arun(self, model: str, inputs: Any, *, timeout: float | None = None, **options: Any) -> Any:
        future: JobFuture | None = None
        try:
            async with asyncio.timeout(timeout):
                future = await self.asubmit(model, inputs, **options)
                return await future
        except TimeoutError:
            if future is None or future.done():
                raise
            raise _goes_on(future, timeout) from None
        except CancelledError:
            if future is None:
                raise
            raise JobError.of(future.job) from None

    async def asubmit(self, model: str, inputs: Any, **options: Any) -> JobFuture:
        return await self._in_thread(functools.partial(self.submit, model, inputs, **options))

    async def ajob(self, job_id: str) -> JobFuture:
        return await self._in_thread(functools.partial(self.job, job_id))

    async def amap(self, model: str, inputs: Iterable[Any] | AsyncIterable[Any], **options: Any) -> AsyncIterator[Any]:
        """As `map`, whose iterator runs in a thread; `inputs` may be an asynchronous iterable."""
        loop = asyncio.get_running_loop()
        source = _pulled(inputs, loop) if isinstance(inputs, AsyncIterable) else inputs
        async for answer in _in_own_thread(self.map(model, source, **options)):
            yield answer

    async def astream(self, model: str, inputs: Any, **options: Any) -> AsyncIterator[StreamEvent]:
        async for event in _in_own_thread(await self._in_thread(lambda: self.stream(model, inputs, **options))):
            yield event

    async def acancel(self, id: str) -> Document:
        return await self._in_thread(functools.partial(self.cancel, id))

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    # Life

    def close(self) -> None:
        """Futures that are not done end with an error; their jobs go on."""
        self._watch.close()
        self._threads.shutdown(wait=False)
        self.service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _submit(
        self,
        model: str,
        inputs: Any,
        *,
        wait_s: float = 0.0,
        timeout: float | None = None,
        parameters: Mapping[str, Any] | None = None,
        priority: str | None = None,
        expires_in: float | None = None,
        webhook: str | None = None,
        key: str | None = None,
    ) -> Document:
        given = {"parameters": parameters, "priority": priority, "expires_in": expires_in, "webhook": webhook}
        job = {"model": model, "inputs": inputs, **{name: value for name, value in given.items() if value is not None}}
        own_key = key or str(uuid.uuid4())
        until = math.inf if timeout is None else time.monotonic() + timeout

        def ask() -> Document:
            left_s = max(0.0, until - time.monotonic())
            return self.service.submit(job, key=own_key, wait_s=min(wait_s, left_s), answer_s=left_s + GRACE_S)

        return patiently(ask, limit_s=self.patience_s, until=until)

    def _events(self, job_id: str, after: str = "") -> Iterator[StreamEvent]:
        return stream.events(self.service, job_id, after=after, patience_s=self.patience_s)

    def _future(self, job: Document) -> JobFuture:
        service = self.service
        future = JobFuture(
            job, lambda job_id: self._patiently(lambda: service.cancel(job_id)), self._events, service.check_wait
        )
        future.settle(job)
        if not future.done():
            service.once_stored(lambda: self._watch.add(future), otherwise=lambda: future.fail(_undone(future.id)))
        return future

    def _job_or_bulk(self, id: str, job: Callable[[str], Document], bulk: Callable[[str], Document]) -> Document:
        try:
            return self._patiently(lambda: job(id))
        except ClientError as error:
            if error.code != "job_not_found":
                raise
            not_a_job = error
        try:
            return self._patiently(lambda: bulk(id))
        except ClientError as error:
            raise not_a_job if error.code == "bulk_not_found" else error from None

    def _patiently(self, call: Callable[[], T]) -> T:
        return patiently(call, limit_s=self.patience_s)


class Client(BaseClient):
    """Of the service at `url`, with an API key where it wants one."""

    def __init__(self, url: str, key: str = "", *, patience_s: float = PATIENCE_S) -> None:
        super().__init__(Http(url, key), patience_s=patience_s)


clients: weakref.WeakSet[BaseClient] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(clients):
        client.start_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _undone(job_id: str) -> JobError:
    return JobError(
        f"There is no job {job_id}: the transaction that submitted it was undone.", code="job_not_found", job_id=job_id
    )


def _goes_on(future: JobFuture, timeout: float | None) -> TimeoutError:
    told = f"The job {future.id} is not finished after {timeout:g} s."
    return TimeoutError(f"{told} It goes on: client.job({future.id!r}).result().")


async def _in_own_thread(items: Iterator[T]) -> AsyncIterator[T]:
    """Who is cancelled leaves the thread in the middle of an item, which may never come: nobody waits for its end."""
    end: Any = object()
    asked = SimpleQueue[Future[T] | None]()

    def answer() -> None:
        while (item := asked.get()) is not None:
            try:
                item.set_result(next(items, end))
            except BaseException as error:
                item.set_exception(error)

    threading.Thread(target=answer, name="inference-client-iterator", daemon=True).start()
    try:
        while True:
            item = Future[T]()
            item.set_running_or_notify_cancel()
            asked.put(item)
            if (value := await asyncio.wrap_future(item)) is end:
                return
            yield value
    finally:
        asked.put(None)


def _pulled(inputs: AsyncIterable[Any], loop: asyncio.AbstractEventLoop) -> Iterator[Any]:
    """An asynchronous iterable, for a thread beside its loop."""
    iterator = aiter(inputs)
    end = object()
    while (value := asyncio.run_coroutine_threadsafe(_next(iterator, end), loop).result()) is not end:
        yield value


async def _next(iterator: AsyncIterator[Any], end: Any) -> Any:
    return await anext(iterator, end)
