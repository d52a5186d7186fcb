"""Messages arrive as they were sent, in however many pieces they come."""

import io
import pickle
from unittest import TestCase

from inference.worker import framing

MESSAGES = [(1, "a"), (), (2, b"x" * 70_000, None)]


class FramingTests(TestCase):
    data = b"".join(map(framing.pack_message, MESSAGES))

    def test_messages_arrive_whole_whatever_the_pieces(self) -> None:
        for size in (1, 3, 4, 5, 1000, len(self.data)):
            unpacker = framing.Unpacker()
            found = [
                message
                for begin in range(0, len(self.data), size)
                for message in unpacker.unpack_messages(self.data[begin : begin + size])
            ]
            self.assertEqual(found, MESSAGES)

    def test_a_stream_is_read_message_by_message_and_its_end_is_told_from_a_message(self) -> None:
        stream = io.BytesIO(self.data)
        self.assertEqual([framing.read_message(stream) for _ in MESSAGES], MESSAGES)
        for cut in (0, 3, 6):
            with self.assertRaises(EOFError):
                framing.read_message(io.BytesIO(self.data[:cut]))

    def test_what_is_no_message_raises(self) -> None:
        with self.assertRaises(pickle.UnpicklingError):
            list(framing.Unpacker().unpack_messages(b"\0\0\0\1x"))
