"""Traces are off unless they are wanted, believe no malformed context, and tell what generation used."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from datetime import timedelta
from unittest import TestCase
from unittest.mock import patch
from uuid import uuid4

from django.conf import settings
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from inference.catalog import lookup
from inference.catalog.specs import CatalogError
from inference.store import job_spans
from inference.store.outcome_records import Outcome
from inference.telemetry import tracing
from tests.conditions import ago

WANTED = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
TRACEPARENT = f"00-{7:032x}-{9:016x}-01"


class OnTests(TestCase):
    def run_with(self, script: str, environment: dict[str, str]) -> str:
        own = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        run = subprocess.run(
            [sys.executable, "-c", script],
            env={**own, **environment},
            cwd=settings.BASE_DIR,
            capture_output=True,
            text=True,
            check=True,
        )
        return run.stdout + run.stderr

    def test_where_they_are_off_nothing_is_imported_and_no_statement_names_the_column(self) -> None:
        script = (
            "import sys, django; django.setup()\n"
            "import project.urls, inference.worker.child.served_calls\n"
            "from inference.store import job_rows, transitions\n"
            "names = 'traceparent' in job_rows.PREPARED, 'traceparent' in transitions._CLAIMED\n"
            "print(*names, 'opentelemetry.exporter' in sys.modules)"
        )
        for off in ({}, {**WANTED, "OTEL_SDK_DISABLED": "true"}, {**WANTED, "OTEL_TRACES_EXPORTER": "none"}):
            self.assertEqual(self.run_with(script, off), "False False False\n")
        self.assertEqual(self.run_with(script, WANTED), "True True True\n")

    def test_where_the_packages_are_missing_it_says_so_and_goes_on(self) -> None:
        statement = "import inference.telemetry.tracing as it; print(it.on)"
        script = f"import sys; sys.modules['opentelemetry'] = None; {statement}"
        said = self.run_with(script, WANTED)
        self.assertIn("False\n", said)
        self.assertIn("pip install -r requirements-otel.txt", said)

    def test_what_the_sdk_refuses_leaves_no_traces_and_no_request_fails(self) -> None:
        for wrong in ({"OTEL_BSP_MAX_QUEUE_SIZE": "100"}, {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "x"}):
            script = (
                "from inference.telemetry import tracing\n"
                "if tracing.on:\n"
                "  with tracing.get_tracer().start_as_current_span('request'): print('served')\n"
                "else: print('off')"
            )
            said = self.run_with(script, {**WANTED, **wrong})
            self.assertRegex(said, "(served|off)\n")
            self.assertIn("there are no traces", said)

    def test_a_header_that_is_not_understood_is_not_in_the_log(self) -> None:
        said = self.run_with(
            "from inference.telemetry import tracing; tracing.get_tracer(); print('served')",
            {**WANTED, "OTEL_EXPORTER_OTLP_HEADERS": "Authorization: Bearer SECRET123"},
        )
        self.assertIn("served", said)
        self.assertNotIn("SECRET123", said)

    def test_a_collector_that_hangs_holds_no_process_up(self) -> None:
        hangs = threading.Event()
        self.addCleanup(hangs.set)
        with patch.object(tracing, "_flush", hangs.wait), patch.object(tracing, "LAST_SPANS_S", 0.01):
            tracing.flush_spans()
        self.assertFalse(hangs.is_set())


class SpanTests(TestCase):
    def setUp(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.enterContext(patch.object(tracing, "_provider", provider))

    def test_a_context_goes_through_a_row(self) -> None:
        with tracing.get_tracer().start_as_current_span("request", tracing.parse_context(TRACEPARENT)):
            stored = tracing.get_traceparent()
        self.assertRegex(str(stored), f"^00-{7:032x}-[0-9a-f]{{16}}-01$")
        self.assertIsNone(tracing.get_traceparent())
        [request] = self.exporter.get_finished_spans()
        found = trace.get_current_span(tracing.parse_context(stored)).get_span_context()
        self.assertEqual(found.span_id, request.context.span_id if request.context else None)

    def test_a_file_that_is_refused_changes_nothing(self) -> None:
        with patch.object(lookup, "get_catalog", side_effect=CatalogError("line 3")):
            job_spans.make_batch_spans(uuid4(), [Outcome(job_id=uuid4(), model="m", created_at=ago())], 1)
        self.assertEqual(len(self.exporter.get_finished_spans()), 2)

    def test_whatever_fails_is_logged_and_nothing_else(self) -> None:
        with self.assertLogs(job_spans.logger, "ERROR"):
            job_spans.try_to_record(lambda: self.fail("a bug"))

    def test_a_malformed_context_is_none(self) -> None:
        for traceparent in (
            None, "", "x", TRACEPARENT[:-1], TRACEPARENT + "-x", "ff" + TRACEPARENT[2:], f"00-{0:032x}-{9:016x}-01",
            "é" * 55,
        ):  # fmt: skip
            found = trace.get_current_span(tracing.parse_context(traceparent)).get_span_context()
            self.assertFalse(found.is_valid, traceparent)

    def test_spans_have_the_usage_of_generation_and_nothing_of_the_text(self) -> None:
        details = {"finish_reason": "stop", "prompt_tokens": 3, "generated_tokens": 5}
        now = ago()
        outcomes = [
            Outcome(
                job_id=uuid4(),
                model="m",
                output=output,
                error_code=code,
                error_detail="marked",
                traceparent=TRACEPARENT,
                created_at=now - timedelta(seconds=2),
                started_at=now - timedelta(seconds=1),
            )
            for output, code in (([{"generated_text": "marked", "details": details}], ""), (None, "crashed"))
        ]
        job_spans.make_batch_spans(uuid4(), outcomes, 2)
        batch, good, bad = self.exporter.get_finished_spans()
        attributes = dict(good.attributes or {})
        self.assertEqual((attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]), (3, 5))
        self.assertAlmostEqual(float(str(attributes["inference.job.queue_s"])), 1.0, places=2)
        self.assertEqual((bad.attributes or {})["error.type"], "crashed")
        self.assertEqual([link.context for link in batch.links], [good.context, bad.context])
        self.assertNotIn("marked", "".join(span.to_json() for span in (batch, good, bad)))
