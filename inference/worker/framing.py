"""The framing of messages on the connection between a worker's main process and a child process.

A message is a tuple. It is sent as four bytes with its length, followed by its pickle.
"""

import pickle
import struct
from collections.abc import Iterator
from io import RawIOBase
from typing import Any, BinaryIO

LENGTH = struct.Struct("!I")
Message = tuple[Any, ...]


def pack_message(message: Message) -> bytes:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(data)) + data


def read_message(stream: BinaryIO | RawIOBase) -> Message:
    """Wait for the next message of a stream and return it. Raises `EOFError` if the stream ends before or within it."""
    (length,) = LENGTH.unpack(_read_all(stream, LENGTH.size))
    message: Message = pickle.loads(_read_all(stream, length))  # noqa: S301 - of this worker's own processes
    return message


def _read_all(stream: BinaryIO | RawIOBase, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (part := stream.read(size - len(data))):
            raise EOFError
        data += part
    return data


class Unpacker:
    """The messages in what was received from a connection so far."""

    def __init__(self) -> None:
        self._received = bytearray()

    def unpack_messages(self, data: bytes) -> Iterator[Message]:
        """Add received bytes, and yield each message that is complete."""
        self._received += data
        begin = 0
        try:
            while len(self._received) - begin >= LENGTH.size:
                start = begin + LENGTH.size
                end = start + LENGTH.unpack_from(self._received, begin)[0]
                if end > len(self._received):
                    return
                begin = end
                yield pickle.loads(self._received[start:end])  # noqa: S301 - of this worker's own processes
        finally:
            del self._received[:begin]
