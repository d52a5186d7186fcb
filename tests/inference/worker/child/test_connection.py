"""A child process that starts waits for messages between two of its loads."""

import os
import socket
from unittest import TestCase

from inference.worker import framing
from inference.worker.calls import LOAD_NEXT, ReplyKind
from inference.worker.child.connection import ChildCall, MainConnection

CALL = ChildCall(7, str, ("text",))


class ReceiveTests(TestCase):
    def setUp(self) -> None:
        self.main, child = socket.socketpair()
        self.addCleanup(self.main.close)
        self.addCleanup(child.close)
        self.connection = MainConnection(child)

    def send(self, *messages: framing.Message) -> None:
        for message in messages:
            self.main.sendall(framing.pack_message(message))

    def receive(self) -> ChildCall | None:
        """Return the next call before a load, without any patience."""
        return self.connection.receive_call_before_load(0.0)

    def test_the_next_model_is_loaded_once_the_main_process_says_so(self) -> None:
        self.send(CALL, LOAD_NEXT, CALL)
        self.assertEqual([self.receive(), self.receive(), self.receive()], [CALL, None, CALL])
        self.assertFalse(self.connection.is_silent)

    def test_it_is_loaded_if_nothing_is_said_and_the_main_process_is_told(self) -> None:
        self.assertIsNone(self.receive())
        self.assertTrue(self.connection.is_silent)
        with self.main.makefile("rb") as stream:
            self.assertEqual(framing.read_message(stream), (ReplyKind.LOADING, 0, None))

    def test_what_is_said_later_changes_nothing(self) -> None:
        self.send(LOAD_NEXT, CALL)
        self.assertEqual(self.connection.receive_call(), CALL)

    def test_no_call_follows_the_last_message(self) -> None:
        self.send(CALL, ())
        self.assertEqual(self.receive(), CALL)
        with self.assertRaises(SystemExit) as ended:
            self.receive()
        self.assertEqual(ended.exception.code, os.EX_OK)
