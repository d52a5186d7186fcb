"""The lines of a file of requests, which are read one by one and checked as OpenAI does."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from django.conf import settings

from api import codec
from api.file_batches.endpoints import Endpoint
from api.requests.dialects.base import read_non_null_fields
from inference.errors import InferenceError, InvalidInput, UnknownModel

MOST_LINES = 50_000
MOST_INPUTS = 50_000  # texts of all lines together, as OpenAI's
LONGEST_ID = 512  # characters of a custom_id
FIELDS = ("custom_id", "method", "url", "body")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line that is not blank."""

    index: int  # among the lines that are not blank
    number: int  # of the line in the file, from 1
    end: int  # bytes of the file up to and with this line
    text: bytes


class LineRefused(Exception):
    """A line that is no request. The whole file is refused for it."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


def read_lines(file: IO[bytes], *, index: int = 0, start: int = 0) -> Iterator[Line]:
    """Yield the lines from the byte `start` on, the first of which has the given index.

    A line that is longer than a request's body may be is cut, and is the last one. The number of a line is right only
    if the file is read from its beginning.
    """
    longest, number = settings.DATA_UPLOAD_MAX_MEMORY_SIZE, 0
    file.seek(start)
    while text := file.readline(longest + 1):
        first = text.removeprefix(codecs.BOM_UTF8) if not start else text
        number, start = number + 1, start + len(text)
        if len(text) > longest:  # also if it is blank: what follows it is not read
            yield Line(index=index, number=number, end=start, text=text)
            return
        if stripped := first.strip():
            yield Line(index=index, number=number, end=start, text=stripped)
            index += 1


def check_line(line: Line, address: str, endpoint: Endpoint) -> tuple[str, str, int]:
    """Return the id, the model and the number of inputs of a line.

    Raises `LineRefused` if it is no request to `address`, whose endpoint is given too.
    """
    document = _parse_line(line)
    for name in FIELDS:
        if document.get(name) is None:
            raise LineRefused("missing_required_parameter", f"Missing required parameter: '{name}'.", name)
    custom_id, method, url, body = (document[name] for name in FIELDS)
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= LONGEST_ID:
        raise LineRefused("invalid_request", f"custom_id: must be a text of 1 to {LONGEST_ID} characters.", "custom_id")
    if method != "POST":
        raise LineRefused("invalid_method", "method: must be POST.", "method")
    if url != address:
        raise LineRefused("url_mismatch", f"url: must be the endpoint of the batch, {address}.", "url")
    if not isinstance(body, dict):
        raise LineRefused("invalid_request", "body: must be an object.", "body")
    if body.get("stream"):
        raise LineRefused("stream_not_supported", "body.stream: a batch has no streams; leave it out.", "body.stream")
    return custom_id, _read_model(body, endpoint), endpoint.count_inputs(body)


def _parse_line(line: Line) -> dict[str, Any]:
    if len(line.text) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
        most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        raise LineRefused("invalid_request", f"The line is longer than the {most} bytes that a request may have.")
    try:
        document = codec.parse_json(line.text)
    except InferenceError as error:
        raise LineRefused("invalid_json_line", f"This line is not parseable as valid JSON. {error.message}") from None
    if not isinstance(document, dict):
        raise LineRefused("invalid_json_line", 'The line must be an object such as {"custom_id": "1", …}.')
    return document


def _read_model(body: dict[str, Any], endpoint: Endpoint) -> str:
    try:
        return endpoint.find_model(read_non_null_fields(body)).name
    except UnknownModel as error:
        raise LineRefused("model_not_found", error.message, "body.model") from None
    except InvalidInput:
        message = "Missing required parameter: 'body.model'."
        raise LineRefused("missing_required_parameter", message, "body.model") from None
