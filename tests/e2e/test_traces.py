"""One trace from the client through queue and batch to the answer, as a collector gets it over OTLP."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest import TestCase
from uuid import UUID

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.conditions import PATIENCE_S, eventually
from tests.e2e.case import ShowingLog
from tests.echo import Fail
from tests.stack import Stack

MARK = "marked-input"
CLIENT = "00f067aa0ba902b7"  # the client's own span


class Collector:
    """Takes what is sent to /v1/traces."""

    def __init__(self, case: TestCase) -> None:
        self.bodies: list[bytes] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = case.enterContext(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        case.addCleanup(self.server.shutdown)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def spans(self, **wanted: str) -> list[Any]:
        """Those with these attributes; an underscore in a name stands for a dot."""
        requests = [ExportTraceServiceRequest.FromString(body) for body in list(self.bodies)]
        scopes = [scope for request in requests for each in request.resource_spans for scope in each.scope_spans]
        found = [span for scope in scopes for span in scope.spans]
        return [span for span in found if wanted.items() <= attributes(span).items()]


def attributes(span: Any) -> dict[str, Any]:
    return {each.key.replace(".", "_"): getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def trace(number: int) -> str:
    return f"{number:032x}"


class TestTraces(ShowingLog):
    def test_a_clients_trace_leads_through_queue_and_batch_to_the_answer(self) -> None:
        collector = Collector(self)
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.address, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        with Stack(replicas=1, environment=environment) as self.stack:
            self.stack.hold()
            busy = self.submit({"text": MARK, "fail": Fail.HELD}, 9)
            eventually(lambda: self.is_running(busy), "it runs")
            jobs = [self.submit(f"{MARK} {number}", number) for number in (1, 2)]
            failing = self.submit({"text": MARK, "fail": "exception"}, 3)
            cancelled = self.submit(MARK, 4)
            self.stack.post(f"/v1/jobs/{cancelled}/cancel", {})
            forged = [
                self.submit(MARK, traceparent=traceparent)
                for traceparent in ("00-zz-1-01", "x" * 10_000, f"00-{trace(0)}-{CLIENT}-01")
            ]
            self.stack.release()
            every = [busy, *jobs, failing, cancelled, *forged]
            self.stack.finished(*every)
            path = f"/v1/models/echo?timeout={PATIENCE_S:g}"
            answered = self.stack.post(path, {"inputs": MARK}, headers=self.headers(5))
            self.assertEqual(answered.status, 200)

            for number, job in ((1, jobs[0]), (2, jobs[1]), (3, failing), (4, cancelled)):
                span = self.job_span(collector, str(job))
                self.assertEqual(span.trace_id.hex(), trace(number))
                [request] = [each for each in collector.spans() if each.span_id == span.parent_span_id]
                self.assertEqual((request.trace_id.hex(), request.parent_span_id.hex()), (trace(number), CLIENT))
                self.assertEqual(
                    (request.name, attributes(request)["http_response_status_code"]), ("POST /v1/jobs", 202)
                )
                self.assertEqual(attributes(span)["gen_ai_request_model"], "echo")
            job_attributes = [attributes(self.job_span(collector, str(job))) for job in (jobs[0], failing, cancelled)]
            self.assertEqual(
                [each["inference_job_status"] for each in job_attributes], ["succeeded", "failed", "cancelled"]
            )
            self.assertEqual([each.get("error_type") for each in job_attributes], [None, "engine_error", None])
            self.assertGreater(job_attributes[0]["inference_job_queue_s"], 0)

            spans = {self.job_span(collector, str(job)).span_id for job in jobs}
            batch = eventually(
                lambda: [each for each in collector.spans() if spans <= {link.span_id for link in each.links}],
                "the batch is linked to its jobs",
            )
            self.assertEqual([each.name for each in batch], ["batch echo"])
            for job in forged:
                self.assertNotEqual(self.job_span(collector, str(job)).trace_id, bytes(16))
            eventually(lambda: len(of_trace(collector, 5)) == 2, "the blocking request and its job are told")
            self.a_list_has_one_span_and_its_parts_are_within(collector)
        self.assertNotIn(MARK.encode(), b"".join(collector.bodies))

    def a_list_has_one_span_and_its_parts_are_within(self, collector: Collector) -> None:
        job = str(self.submit([f"{MARK} {number}" for number in range(40)], 6))
        spans = eventually(
            lambda: len(found := of_trace(collector, 6)) == 5 and found, "the list and its parts are told"
        )
        [request] = [each for each in spans if each.name == "POST /v1/jobs"]
        parts = [each for each in spans if "inference_batch_id" in attributes(each)]
        [whole] = [each for each in spans if each not in (request, *parts)]
        self.assertEqual([each.parent_span_id for each in parts], [whole.span_id] * 3)
        self.assertEqual((whole.parent_span_id, whole.name), (request.span_id, parts[0].name))
        self.assertEqual({attributes(each)["inference_job_id"] for each in (whole, *parts)}, {job})

    def submit(self, inputs: Any, number: int = 0, *, traceparent: str = "") -> UUID:
        answer = self.stack.post(
            "/v1/jobs", {"model": "echo", "inputs": inputs}, headers=self.headers(number, traceparent)
        )
        self.assertEqual(answer.status, 202)
        return UUID(answer.json["id"])

    def headers(self, number: int, traceparent: str = "") -> dict[str, str]:
        return {"traceparent": traceparent or f"00-{trace(number)}-{CLIENT}-01"}

    def job_span(self, collector: Collector, job: str) -> Any:
        [span] = eventually(lambda: collector.spans(inference_job_id=job), f"the span of {job} is told")
        return span


def of_trace(collector: Collector, number: int) -> list[Any]:
    return [each for each in collector.spans() if each.trace_id.hex() == trace(number)]
