"""The service over HTTP, called with urllib3.

urllib3 keeps connections for many threads, needs no other package, and costs a third of the CPU of libraries that also
support asyncio. Those are not needed: an `await` of a job holds neither a thread nor a connection.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import HTTPError, LocationValueError, SSLError
from urllib3.util import Timeout, parse_url

from batch_inference_client import sse
from batch_inference_client.errors import PASSING, ClientError
from batch_inference_client.service import LONGEST_S, Document, Service, StreamEvent, dumps

CONNECT_S = 5.0
ANSWER_S = 30.0  # besides the wait that was asked for; the service answers within 6 s, a large bulk some seconds later
STORED_S = 300.0  # after an upload, of which the service makes another copy
STALLED_S = 30.0  # in which nothing more of an upload is taken
PIECE = 256 * 1024  # bytes of a file at a time
SILENT_S = 35.0  # after which a stream counts as broken off; it sends a sign of life every ten seconds
STREAMED = 200  # status of a stream, and of the content of a file
PLAIN = "outputs=plain"
HEADER = re.compile(r"[\x21-\x7e]{1,255}")  # an API key or an idempotency key, as the service takes them
JOB = ("id", "status", "output", "error")
BATCH = ("id", "status", "request_counts", "output_file_id", "error_file_id", "errors")
OPENAI_CODES = {"invalid_api_key": "unauthorized", "rate_limit_exceeded": "too_many_requests"}  # and the service's
ID = re.compile(r"[A-Za-z0-9_-]+")
TOO_LARGE = 413  # status of the service, or of a proxy in between
RETRIED = (408, 425, 429, 502, 503, 504)  # statuses of a proxy in between, without a problem document


class Http(Service):
    def __init__(self, url: str, key: str = "", *, connections: int = 16) -> None:
        self.url = _check_url(url)
        if key and not HEADER.fullmatch(key):
            raise ClientError("The API key has characters that no key has.", code="unauthorized")
        self._headers = {"User-Agent": "inference-client", **({"Authorization": f"Bearer {key}"} if key else {})}
        self._connections = connections
        self.reconnect()

    def submit(self, job: Mapping[str, Any], *, key: str, wait_s: float = 0.0, answer_s: float = math.inf) -> Document:
        if not HEADER.fullmatch(key):
            raise ClientError("key: must be 1 to 255 visible ASCII characters, such as a UUID.", code="bad_request")
        prefer = f"{PLAIN}, wait={int(wait_s)}" if wait_s >= 1 else PLAIN
        return self._request(
            "POST",
            "/v1/jobs",
            dumps(job),
            headers={"Idempotency-Key": key, "Prefer": prefer},
            wait_s=wait_s,
            answer_s=answer_s,
            members=JOB,
        )

    def wait(self, ids: Sequence[str], *, wait_s: float) -> Document:
        members = ("items", "missing")
        return self._request(
            "POST", "/v1/jobs/wait", dumps({"ids": ids}), query={"wait": wait_s}, wait_s=wait_s, members=members
        )

    def job(self, job_id: str) -> Document:
        return self._request("GET", f"/v1/jobs/{_check_id(job_id)}", members=JOB)

    def stream(self, job_id: str, *, after: str) -> Iterator[StreamEvent | None]:
        address = f"{self.url}/v1/jobs/{_check_id(job_id)}/stream"
        with self._translate_errors():
            answer = self._send("GET", address, headers={"Last-Event-ID": after} if after else {}, read_s=SILENT_S)
            try:
                if answer.status != STREAMED:
                    raise _make_error(self.url, answer, _parse_json(answer.read()))
                yield from sse.parse_events(answer.stream(sse.MOST_READ))
            except (ValueError, KeyError, TypeError):
                raise _make_error(self.url, answer, None) from None
            finally:
                answer.close()  # the rest of the answer is not read

    def cancel(self, job_id: str) -> Document:
        return self._request("POST", f"/v1/jobs/{_check_id(job_id)}/cancel", members=(*JOB, "was_running"))

    def submit_bulk(self, lines: Sequence[bytes], *, terms: Mapping[str, Any], key: str) -> Document:
        headers = {"Idempotency-Key": key, "Content-Type": "application/x-ndjson"}
        members = ("id", "counts", "jobs", "refused")
        return self._request("POST", "/v1/jobs/bulk", b"\n".join(lines), query=terms, headers=headers, members=members)

    def bulk(self, bulk_id: str) -> Document:
        return self._request("GET", f"/v1/jobs/bulk/{_check_id(bulk_id)}", members=("id", "counts"))

    def cancel_bulk(self, bulk_id: str) -> Document:
        return self._request("POST", f"/v1/jobs/bulk/{_check_id(bulk_id)}/cancel", members=("id", "counts"))

    def upload_file(self, path: Path) -> Document:
        boundary = uuid.uuid4().hex
        head, tail = _make_form_head_and_tail(path.name, boundary)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            headers = {
                "Content-Type": f"multipart/form-data; boundary={boundary}",
                "Content-Length": str(len(head) + size + len(tail)),
            }
            return self._request(
                "POST",
                "/v1/files",
                _iterate_form(head, file, size, tail),
                headers=headers,
                members=("id", "bytes"),
                connect_s=STALLED_S,
                wait_s=STORED_S,
            )

    def create_batch(self, batch: Mapping[str, Any], *, key: str) -> Document:
        return self._request("POST", "/v1/batches", dumps(batch), headers={"Idempotency-Key": key}, members=BATCH)

    def batch(self, batch_id: str) -> Document:
        return self._request("GET", f"/v1/batches/{_check_id(batch_id, 'batch')}", members=BATCH)

    def cancel_batch(self, batch_id: str) -> Document:
        return self._request("POST", f"/v1/batches/{_check_id(batch_id, 'batch')}/cancel", members=BATCH)

    def file_content(self, file_id: str) -> Iterator[bytes]:
        return self._read_pieces(f"/v1/files/{_check_id(file_id, 'file')}/content")

    def batch_output(self, batch_id: str) -> Iterator[bytes]:
        return self._read_pieces(f"/v1/batches/{_check_id(batch_id, 'batch')}/output")

    def _read_pieces(self, path: str) -> Iterator[bytes]:
        with self._translate_errors():
            answer = self._send("GET", f"{self.url}{path}", headers={}, read_s=ANSWER_S)
            try:
                if answer.status != STREAMED:
                    raise _make_error(self.url, answer, _parse_json(answer.read()))
                yield from answer.stream(PIECE)
            finally:
                answer.close()  # the rest of the answer is not read

    def models(self) -> list[Document]:
        return list(self._request("GET", "/v1/models", members=("items",))["items"])

    def ready(self) -> Document:
        return self._request("GET", "/readyz", members=("ready", "reasons"), taken=(200, 503))

    def reconnect(self) -> None:
        self._pool = urllib3.PoolManager(num_pools=1, maxsize=self._connections, retries=False)

    def close(self) -> None:
        self._pool.clear()

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | Iterator[bytes] | None = None,
        *,
        members: Sequence[str],
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
        answer_s: float = math.inf,
        connect_s: float = CONNECT_S,
        taken: Sequence[int] = (200, 202),
    ) -> Document:
        """Send a request and return the document of its answer, which has these `members`.

        Raises `ClientError`, also for a redirect: it is not followed, as the API key is for this address only.
        """
        address = f"{self.url}{path}" + (f"?{urlencode(query)}" if query else "")
        with self._translate_errors():
            answer = self._send(
                method,
                address,
                body,
                headers=headers or {},
                read_s=min(wait_s + ANSWER_S, answer_s),
                connect_s=connect_s,
            )
            document = _parse_json(answer.read())
        if answer.status in taken and isinstance(document, dict) and document.keys() >= set(members):
            pause_s = _read_retry_after_s(answer) if path == "/v1/jobs/wait" else None
            return {**document, "pause_s": min(pause_s, LONGEST_S)} if pause_s else document
        raise _make_error(self.url, answer, document)

    def _send(
        self,
        method: str,
        address: str,
        body: bytes | Iterator[bytes] | None = None,
        *,
        headers: Mapping[str, str],
        read_s: float,
        connect_s: float = CONNECT_S,
    ) -> urllib3.BaseHTTPResponse:
        """Send a request and return its answer, whose body is still to be read.

        `connect_s` is also the limit of each piece of the request's body.
        """
        sent = {"Prefer": PLAIN, "Content-Type": "application/json", **self._headers, **headers}
        timeout = Timeout(connect=min(connect_s, read_s), read=read_s)
        return self._pool.request(
            method, address, body=body, headers=sent, timeout=timeout, redirect=False, preload_content=False
        )

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Turn an error of the connection within this context into a `ClientError` that says what is wrong."""
        try:
            yield
        except SSLError as error:
            raise ClientError(
                f"{self.url} has no certificate that is trusted here: {error}", code="unreachable"
            ) from None
        except HTTPError as error:
            raise ClientError(
                f"{self.url} cannot be reached: {_get_reason(error)}. Is the address right, and does the service run?",
                code="unreachable",
                passing=True,
            ) from None


def _parse_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _check_url(url: str) -> str:
    """Return the address without a slash at its end. Raises `ClientError` if it is not that of a service."""
    try:
        parsed = parse_url(url)
    except LocationValueError:
        parsed = parse_url("")
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.auth or parsed.query or parsed.fragment:
        raise ClientError(
            "The address must be that of the service and nothing else, such as http://127.0.0.1:8000.",
            code="bad_request",
        )
    return url.rstrip("/")


def _check_id(text: str, kind: str = "job") -> str:
    """Return an id that can be a part of an address. Raises `ClientError` for a text that is no id."""
    if not ID.fullmatch(text):
        raise ClientError(f"{text[:100]!r} is no id of a {kind}.", code=f"{kind}_not_found")
    return text


def _make_form_head_and_tail(name: str, boundary: str) -> tuple[bytes, bytes]:
    """Return what stands before and after the content of a file in the form that uploads it."""
    shown = re.sub(r'[\x00-\x1f"\\]', "_", name)
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{shown}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    return head.encode(errors="replace"), f"\r\n--{boundary}--\r\n".encode()


def _iterate_form(head: bytes, file: IO[bytes], size: int, tail: bytes) -> Iterator[bytes]:
    """Yield a form with the first `size` bytes of a file, to which others may append meanwhile."""
    yield head
    while size > 0 and (piece := file.read(min(PIECE, size))):
        size -= len(piece)
        yield piece
    yield tail


def _get_reason(error: HTTPError) -> str:
    return str(error).rpartition(": ")[2] or type(error).__name__


def _read_retry_after_s(answer: urllib3.BaseHTTPResponse) -> float | None:
    """Return the seconds of the header Retry-After.

    It is None if there is no such header, or if it has a date. The client's pauses grow then.
    """
    text = answer.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() else None


def _read_problem(answer: urllib3.BaseHTTPResponse, document: Any) -> dict[str, Any] | None:
    """Return the problem document of an answer, which is None for an answer of another service.

    The addresses of files and batches answer in OpenAI's form, with some of OpenAI's codes.
    """
    match document:
        case {"code": _, "detail": _}:
            return dict(document)
        case {"error": {"code": str() as code, "message": str() as detail}}:
            shown = OPENAI_CODES.get(code, code)
            return {"code": shown, "detail": detail, "request_id": answer.headers.get("X-Request-ID")}
    return None


def _make_error(url: str, answer: urllib3.BaseHTTPResponse, document: object) -> ClientError:
    status = answer.status
    retry_after_s = _read_retry_after_s(answer)
    if 300 <= status < 400:
        to = answer.headers.get("Location", "another address")
        return ClientError(f"{url} redirects to {to}. Use the address that it leads to.", code="redirected")
    if problem := _read_problem(answer, document):
        code = str(problem["code"])
        return ClientError(
            problem["detail"], code=code, passing=code in PASSING, retry_after_s=retry_after_s, problem=problem
        )
    if status == TOO_LARGE:
        return ClientError(f"What stands before {url} takes no body of this size.", code="body_too_large")
    return ClientError(
        f"{url} answered {status} and not as this service does. Is the address right?",
        code="no_answer",
        passing=status in RETRIED,
        retry_after_s=retry_after_s,
    )
