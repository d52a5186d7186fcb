"""Multipart forms with a file, which are read in pieces: no more than a piece is in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast
from wsgiref.types import InputStream

from django.conf import settings
from django.core.exceptions import SuspiciousOperation
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler
from django.http.multipartparser import MultiPartParser, MultiPartParserError
from django.utils.http import parse_header_parameters

from api.errors.problems import ApiError
from inference.errors import StoreUnavailable, make_field_error

NO_ROOM = "The storage of files took no more; nothing was stored by this request. Try again later."
KEPT = 4096  # bytes at the end of a body, in which its closing boundary is looked for
UNREADABLE = "The form cannot be read. Send {} and one file, as by curl -F {} -F file=@NAME."
CUT_OFF = "The form ended before its closing boundary. Send the file again."


@dataclass(frozen=True, slots=True, kw_only=True)
class FileForm:
    fields: Mapping[str, str]
    file: UploadedFile[Any]


def open_temporary_file() -> IO[bytes]:
    """Open a file without a name, which is gone with the process. Raises `OSError`."""
    folder = Path(settings.FILES_DIR)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return tempfile.TemporaryFile(dir=folder)  # who opens it closes it


class TemporaryFileHandler(FileUploadHandler):
    """A handler that writes a file to the disk without a name, so that nothing is left of it if the process dies.

    Its methods raise `OSError` if the disk is full.
    """

    def new_file(self, *arguments: Any, **named: Any) -> None:
        super().new_file(*arguments, **named)
        self._file = open_temporary_file()

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        self._file.write(raw_data)

    def file_complete(self, file_size: int) -> UploadedFile[Any]:
        """Return the file, at its beginning."""
        self._file.seek(0)  # writes what is still in memory
        return UploadedFile(self._file, self.file_name, self.content_type, file_size)


class BoundedBody:
    """The body of a request, which ends after `length` bytes, and of which `limit` may be read. It keeps its end."""

    def __init__(self, stream: InputStream, length: int, limit: int) -> None:
        self._stream = stream
        self._length = length
        self._limit = limit
        self._read = 0
        self.end = b""

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most `size`. Raises `ApiError` if the body is too long or cannot be read."""
        try:
            part: bytes = self._stream.read(min(size, self._length - self._read))
        except OSError as error:
            raise ApiError("The body could not be read to its end.") from error
        self._read += len(part)
        if self._read > self._limit:
            raise ApiError(f"The file is larger than the {settings.MAX_FILE_BYTES} bytes taken.", "body_too_large")
        self.end = (self.end + part)[-KEPT:]
        return part


def read_file_form(meta: Mapping[str, Any], *, limit: int, example: str) -> FileForm:
    """Read a form from the body of a request, whose headers are in `meta`.

    The body has a length or is chunked, and may have `limit` bytes. `example` is a field that the form has beside its
    file, with a value. Raises `ApiError`, and `StoreUnavailable` if the disk is full.
    """
    kind, options = parse_header_parameters(str(meta.get("CONTENT_TYPE", "")))
    if kind != "multipart/form-data":
        raise ApiError(
            f"Send a form with Content-Type: multipart/form-data, not {kind[:100]}.", "unsupported_media_type"
        )
    length = int(meta.get("CONTENT_LENGTH") or (limit + 1 if meta.get("HTTP_TRANSFER_ENCODING") else 0))
    body = BoundedBody(meta["wsgi.input"], length, limit)
    try:
        parser = MultiPartParser({**meta, "CONTENT_LENGTH": length}, cast(Any, body), [TemporaryFileHandler()])
        fields, files = parser.parse()
    except (MultiPartParserError, SuspiciousOperation):
        raise ApiError(UNREADABLE.format(example.partition("=")[0], example)) from None
    except OSError as error:  # of the disk: those of the body are errors of the API
        raise StoreUnavailable(NO_ROOM, retry_after_s=60) from error
    if f"--{options.get('boundary', '')}--".encode() not in body.end:
        raise ApiError(CUT_OFF)
    found = [(name, file) for name, several in files.lists() for file in several]
    match found:
        case [("file", UploadedFile() as file)]:
            if twice := next((name for name, values in fields.lists() if len(values) > 1), None):
                raise make_field_error(twice[:100], "is there twice; send it once.")
            return FileForm(fields={name: str(value) for name, value in fields.items()}, file=file)
    raise make_field_error("file", "send one file, in a part with this name and with a filename.")
