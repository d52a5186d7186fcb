"""Hugging Face's documented web server with its dynamic batching, and all of its advice applied.

https://huggingface.co/docs/transformers/pipeline_webserver: a limit to the batch, one deadline of 1 ms that is not
reset by each fetch, PyTorch off the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from benchmarks.pipeline import Pipeline, Setting

DEADLINE_S = 0.001
Waiting = tuple[str, asyncio.Future[Any]]  # a text, and who gets its output


async def answer(request: Request) -> JSONResponse:
    response = asyncio.get_running_loop().create_future()
    await request.app.state.queue.put(((await request.json())["inputs"], response))
    return JSONResponse(await response)


async def gather(queue: asyncio.Queue[Waiting], limit: int) -> list[Waiting]:
    batch = [await queue.get()]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DEADLINE_S):
            while len(batch) < limit:
                batch.append(await queue.get())
    return batch


async def server_loop(pipeline: Pipeline, queue: asyncio.Queue[Waiting], limit: int) -> None:
    while True:
        batch = await gather(queue, limit)
        outputs = await asyncio.to_thread(pipeline, [text for text, _ in batch])
        for (_, response), output in zip(batch, outputs, strict=True):
            response.set_result(output)


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    setting = Setting.from_environment()
    app.state.queue = asyncio.Queue()
    task = asyncio.create_task(server_loop(Pipeline(setting), app.state.queue, setting.max_batch_size))
    yield
    task.cancel()


app = Starlette(routes=[Route("/", answer, methods=["POST"])], lifespan=lifespan)
