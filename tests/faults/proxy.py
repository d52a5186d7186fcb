"""A TCP proxy on the loopback in front of a server's socket, that can fail the way networks do."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

from tests.ports import HOST

T = TypeVar("T")
SLOW_S = 0.2
CHUNK = 65536


class Mode(enum.StrEnum):
    PASS = "pass"
    CUT = "cut"  # connections are closed, and new ones too
    HOLD = "hold"  # a partition: nothing passes, and all of it arrives in the end
    SLOW = "slow"  # everything takes longer
    LOST = "lost"  # the host behind is gone: nothing passes, also of new connections, and nobody is told
    SILENT = "silent"  # the state of the connections of now is lost: nothing passes them any more, nobody is told


class _Link:
    """One connection: what it may do is looked up at each piece of data."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.writers = (client, server)
        self.dead = False

    def close(self) -> None:
        for writer in self.writers:
            writer.close()


class Proxy:
    """Runs an event loop in a thread of its own."""

    target: Path  # the server's Unix socket
    slow_s = SLOW_S

    def __init__(self) -> None:
        self.mode = Mode.PASS
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._open = asyncio.Event()
        self._open.set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._call(self._listen())
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *error: object) -> None:
        self._call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @contextlib.contextmanager
    def failing(self, mode: Mode) -> Iterator[None]:
        self._call(self._set(mode))
        try:
            yield
        finally:
            self._call(self._set(Mode.PASS))

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, HOST, 0)

    async def _set(self, mode: Mode) -> None:
        self.mode = mode
        if mode == Mode.HOLD:
            self._open.clear()
        else:
            self._open.set()
        for link in list(self._links):
            link.dead |= mode in (Mode.SILENT, Mode.LOST)
            if mode == Mode.CUT:
                link.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.mode == Mode.CUT:
            writer.close()
            return
        if self.mode == Mode.LOST:
            await self._swallow(reader, writer)
            return
        await self._open.wait()
        try:
            from_server, to_server = await asyncio.open_unix_connection(str(self.target))
        except OSError:
            writer.close()
            return
        link = _Link(writer, to_server)
        self._links.add(link)
        await asyncio.gather(self._client_to_server(link, reader), self._pump(link, from_server, writer))
        self._links.discard(link)

    async def _swallow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(CHUNK):
                pass
        writer.close()

    async def _client_to_server(self, link: _Link, reader: asyncio.StreamReader) -> None:
        await self._pump(link, reader, link.writers[1])
        link.close()

    async def _pump(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the end of what `reader` reads; a dead link does not pass the end on."""
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._open.wait()
                if self.mode == Mode.SLOW:
                    await asyncio.sleep(self.slow_s)
                if not link.dead:
                    writer.write(data)
                    await writer.drain()
        if not link.dead:
            link.close()

    async def _shut(self) -> None:
        self._server.close()
        for link in list(self._links):
            link.close()
