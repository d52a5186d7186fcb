"""Traces by OpenTelemetry.

They are on if its packages are installed (requirements-otel.txt) and its variables name a server that takes traces.

A job's row has the context that the job came with, a W3C `traceparent`. Messages do not have it, as they are hints and
may be lost or sent again. While traces are off, nothing here is called, and no statement names that column.
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

LONGEST = 55  # characters of a traceparent: version 00 has no other length
LAST_SPANS_S = 2.0  # for which a process that ends waits for its last spans to be sent


def _is_wanted() -> bool:
    if not (os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")):
        return False
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401 - to see whether it is there
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
_next_id: ContextVar[int] = ContextVar("next_id", default=0)  # id of the next span; 0 for a random one


def get_tracer() -> "Tracer":
    """Return the tracer of this process.

    Its thread starts with the first span of a process, as no thread may run in the process that others are forked from.
    """
    global _provider  # noqa: PLW0603 - of this process
    with _lock:
        _provider = _provider or _make_provider()
    return _provider.get_tracer("inference")


def make_part_traceparent(header: str | None, whole: UUID) -> str | None:
    """Return the traceparent of the parts of a list: it names the list's own span, which is made when the list ends."""
    return header and f"{header[:36]}{_make_span_id(whole):016x}{header[52:]}"


@contextlib.contextmanager
def set_whole_span_id(whole: UUID) -> Iterator[None]:
    """Give the span that begins within this context the id of this list's span."""
    token = _next_id.set(_make_span_id(whole))
    try:
        yield
    finally:
        _next_id.reset(token)


def _make_span_id(whole: UUID) -> int:
    return whole.int & 2**64 - 1


def _make_provider() -> "TracerProvider":
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
    multiprocessing.util.Finalize(None, flush_spans, exitpriority=0)  # a web process ends without `atexit`
    return provider


def flush_spans() -> None:
    """Send the last spans, for `LAST_SPANS_S` at most.

    The SDK observes no time limit, so that a collector that is away would hold up the end of a process.
    """
    last = threading.Thread(target=_flush, name="last spans", daemon=True)
    last.start()
    last.join(LAST_SPANS_S)


def get_traceparent() -> str | None:
    """Return the traceparent of the span that this thread is in, to be stored. It is None if there is no such span."""
    from opentelemetry import trace

    at = trace.get_current_span().get_span_context()
    return f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}" if at.is_valid else None


def parse_context(header: str | None) -> "Context":
    """Return the context that a traceparent from outside describes, if it is well-formed.

    If it is not, or if there is none, a new trace begins.
    """
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not header or len(header) > LONGEST:
        return Context()
    return TraceContextTextMapPropagator().extract({"traceparent": header}, Context())
