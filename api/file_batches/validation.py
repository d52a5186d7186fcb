"""The check of a batch's file: all of its lines are requests, or the batch fails and nothing of it runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

from api.file_batches.endpoints import ENDPOINTS
from api.file_batches.lines import MOST_INPUTS, MOST_LINES, LineRefused, check_line, read_lines

SHOWN_ERRORS = 100
LOOKED_EVERY = 500  # lines


@dataclass(slots=True)
class FileCheck:
    """The number of lines of a file, and the reasons to refuse it."""

    total: int = 0
    model: str = ""  # of the first line
    errors: list[dict[str, Any]] = field(default_factory=list)


def check_file(file: IO[bytes], address: str, keep_on: Callable[[], None]) -> FileCheck:
    """Check the lines of a file, which are requests to `address`.

    `keep_on` is called now and then, and may raise to end the check.

    The check ends after `SHOWN_ERRORS` errors.
    """
    found, inputs, endpoint = FileCheck(), 0, ENDPOINTS[address]
    ids: set[bytes] = set()  # digests: fifty thousand ids of 512 characters would be 25 MB
    for line in read_lines(file):
        if line.index == MOST_LINES:
            found.errors.append(
                _make_error("too_many_tasks", f"The file has more than {MOST_LINES:,} lines.", None, None)
            )
            break
        if line.index % LOOKED_EVERY == 0:
            keep_on()
        try:
            custom_id, model, count = check_line(line, address, endpoint)
            digest = hashlib.blake2b(custom_id.encode(), digest_size=16).digest()
            if digest in ids:
                message = f"The custom_id '{custom_id[:100]}' is used by a line before."
                raise LineRefused("duplicate_custom_id", message, "custom_id")
            ids.add(digest)
            found.model = found.model or model
            inputs += count
        except LineRefused as refused:
            found.errors.append(_make_error(refused.code, refused.message, refused.param, line.number))
            if len(found.errors) == SHOWN_ERRORS:
                break
        found.total = line.index + 1
    if inputs > MOST_INPUTS:
        message = f"The lines have {inputs:,} inputs together, and may have {MOST_INPUTS:,}."
        found.errors.append(_make_error("too_many_tasks", message, None, None))
    if not found.total and not found.errors:
        found.errors.append(_make_error("empty_file", "The file has no line.", None, None))
    return found


def _make_error(code: str, message: str, param: str | None, line: int | None) -> dict[str, Any]:
    return {"code": code, "message": message, "param": param, "line": line}
