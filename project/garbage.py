"""When the web process collects garbage: seldom by the count of objects, and by the bytes of the bodies it may hold."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

from django.conf import settings

MOST_BYTES = 32 * 1024 * 1024  # of bodies, between two collections: of 25 ms each

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def collect_less() -> None:
    """What is loaded stays, and is not looked through again; what large requests make many of makes no cycles. Saves a
    quarter of the CPU of a bulk of ten thousand lines."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


class CollectBodies:
    """A request and its view refer to each other, and hold the body until the collector finds them. It counts objects,
    of which a large body is one: a hundred images of 9 MB were kept. Here the bytes are counted too."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self._bytes = 0  # of bodies that came since the last collection

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        length = environ.get("CONTENT_LENGTH") or "0"
        if length.isdecimal() and int(length) <= settings.DATA_UPLOAD_MAX_MEMORY_SIZE:  # larger ones are not kept
            self._bytes += int(length)
        if self._bytes > MOST_BYTES:
            self._bytes = 0
            gc.collect()
        return self.application(environ, start_response)
