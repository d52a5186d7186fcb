"""Hugging Face's documented web server: a queue, and one text at a time.

https://huggingface.co/docs/transformers/pipeline_webserver, with its advice to run PyTorch off the event loop.
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


async def answer(request: Request) -> JSONResponse:
    response = asyncio.get_running_loop().create_future()
    await request.app.state.queue.put(((await request.json())["inputs"], response))
    return JSONResponse(await response)


async def server_loop(pipeline: Pipeline, queue: asyncio.Queue[tuple[str, asyncio.Future[Any]]]) -> None:
    while True:
        text, response = await queue.get()
        response.set_result((await asyncio.to_thread(pipeline, [text]))[0])


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    app.state.queue = asyncio.Queue()
    task = asyncio.create_task(server_loop(Pipeline(Setting.from_environment()), app.state.queue))
    yield
    task.cancel()


app = Starlette(routes=[Route("/", answer, methods=["POST"])], lifespan=lifespan)
