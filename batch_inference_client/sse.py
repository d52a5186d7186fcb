"""The server-sent events as this service writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from batch_inference_client.service import StreamEvent

MOST_READ = 65_536
KINDS = ("delta", "restart", "end")


def parse_events(pieces: Iterable[bytes]) -> Iterator[StreamEvent | None]:
    """Yield the events of a stream, and None for a sign of life of the service.

    Raises `ValueError` or `KeyError` for a stream that this service did not write.
    """
    rest = b""
    for piece in pieces:
        *blocks, rest = (rest + piece).split(b"\n\n")
        yield from map(_parse_event, blocks)


def _parse_event(block: bytes) -> StreamEvent | None:
    fields = dict(line.split(": ", 1) for line in block.decode().split("\n") if ": " in line)
    if fields.get("event") not in KINDS:
        return None
    data = json.loads(fields["data"])
    text = data["token"]["text"] if "token" in data else ""
    return StreamEvent(kind=fields["event"], text=text, id=fields.get("id", ""), job=data.get("job"))
