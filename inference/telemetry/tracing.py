"""Traces by OpenTelemetry: on where its packages are installed (requirements-otel.txt) and its variables say who takes
them.

A job's row has the context that it came with, a W3C `traceparent`: messages are hints, and may be lost or sent again.
Where traces are off, nothing here is called, and no statement names that column.
"""

import contextlib
import logging
import multiprocessing.util
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer, TracerProvider

logger = logging.getLogger(__name__)

LONGEST = 55  # characters: version 00 has no other length
LAST_SPANS_S = 2.0  # for which the end of a process waits


def _is_wanted() -> bool:
    if not (os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")):
        return False
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError:
        warnings.warn(
            "OTEL_* names an exporter of traces: pip install -r requirements-otel.txt to send them.", stacklevel=2
        )
        return False
    except Exception as error:
        warnings.warn(f"OTEL_* is not understood, there are no traces: {error!r}", stacklevel=2)
        return False
    return True


on = _is_wanted()
_provider: "TracerProvider | None" = None
_flush: Callable[[], object] = bool
_lock = threading.Lock()
_next_id: ContextVar[int] = ContextVar("next_id", default=0)  # of a span; 0: any


def tracer() -> "Tracer":
    """Its thread starts with the first span of a process: none may run in the one that others are forked from."""
    global _provider  # noqa: PLW0603 - of this process
    with _lock:
        _provider = _provider or _new_provider()
    return _provider.get_tracer("inference")


def within(told: str | None, whole: UUID) -> str | None:
    """The context of the parts of a list: its own span, which is made when it ends."""
    return told and f"{told[:36]}{_span_id(whole):016x}{told[52:]}"


@contextlib.contextmanager
def known_as(whole: UUID) -> Iterator[None]:
    """The span that begins now is that of this list."""
    token = _next_id.set(_span_id(whole))
    try:
        yield
    finally:
        _next_id.reset(token)


def _span_id(whole: UUID) -> int:
    return whole.int & 2**64 - 1


def _new_provider() -> "TracerProvider":
    global _flush  # noqa: PLW0603 - of this process
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
    from opentelemetry.trace import NoOpTracerProvider

    class Ids(RandomIdGenerator):
        def generate_span_id(self) -> int:
            return _next_id.get() or super().generate_span_id()

    logging.getLogger("opentelemetry.util.re").setLevel(logging.ERROR)  # its warning quotes headers, with their secrets
    try:
        processor = BatchSpanProcessor(OTLPSpanExporter())
        resource = Resource({"service.name": "inference"}).merge(OTELResourceDetector().detect())
        provider = TracerProvider(resource=resource, id_generator=Ids())
    except Exception as error:
        logger.warning("OTEL_* is refused, there are no traces: %s", error)
        return NoOpTracerProvider()
    provider.add_span_processor(processor)
    _flush = provider.force_flush
    multiprocessing.util.Finalize(None, flush, exitpriority=0)  # a web process ends without `atexit`
    return provider


def flush() -> None:
    """The SDK heeds no time limit: a collector that is away would hold up the end of a process."""
    last = threading.Thread(target=_flush, name="last spans", daemon=True)
    last.start()
    last.join(LAST_SPANS_S)


def traceparent() -> str | None:
    """Of what this thread does, to be stored."""
    from opentelemetry import trace

    at = trace.get_current_span().get_span_context()
    return f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}" if at.is_valid else None


def context_of(told: str | None) -> "Context":
    """What comes in is believed if it is well-formed; with another, or none, a trace of its own begins."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not told or len(told) > LONGEST:
        return Context()
    return TraceContextTextMapPropagator().extract({"traceparent": told}, Context())
