"""What `manage.py up` starts, by the variables of README. The programs themselves: tests/e2e/test_up.py."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import sys
import threading
from unittest.mock import Mock, patch

from django.core.management.base import CommandError
from django.test import SimpleTestCase, override_settings

from inference.broker import embedded
from tools.launcher.startup_report import StartupReport
from tools.management.commands import up


class ProgramsTests(SimpleTestCase):
    def names(self, **environment: str) -> list[str]:
        with patch.dict(os.environ, environment), patch.object(embedded, "is_answering", lambda socket: False):
            return [program.name for program in up.list_programs("127.0.0.1", 8000)]

    def setUp(self) -> None:
        self.enterContext(patch.dict(os.environ))
        os.environ.pop("REDIS_URL", None)

    def test_the_broker_starts_first(self) -> None:
        self.assertEqual(self.names(), ["broker", "worker", "web", "batches"])

    def test_a_broker_of_one_s_own_takes_the_place_of_the_embedded_one(self) -> None:
        self.assertEqual(self.names(REDIS_URL="redis://127.0.0.1:6379/0"), ["worker", "web", "batches"])

    @override_settings(WEBHOOK_HOSTS=["hooks.example"])
    def test_the_sender_of_webhooks_runs_where_hosts_are_allowed(self) -> None:
        self.assertEqual(self.names(), ["broker", "worker", "web", "batches", "webhooks"])

    def test_a_folder_with_a_running_service_is_left_alone(self) -> None:
        with patch.object(embedded, "is_answering", lambda socket: True), self.assertRaises(CommandError) as refused:
            up.list_programs("127.0.0.1", 8000)
        self.assertIn("DATA_DIR", str(refused.exception))

    def test_where_it_cannot_listen_is_said_by_what_is_wrong(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            for host, number, words in (
                ("127.0.0.1", port, f"Choose another: make run PORT={port % 65_535 + 1}"),
                ("999.1.1.1", 8000, "HOST: 999.1.1.1 is no address of this machine"),
                ("192.0.2.1", 8000, "HOST: 192.0.2.1 is no address of this machine"),
            ):
                with self.subTest(host), self.assertRaisesRegex(CommandError, words):
                    up.refuse_taken_port(host, number)
        for text in ("99999", "0", "-1", "http"):
            with (
                self.subTest(text),
                self.assertRaisesRegex(CommandError, "PORT must be a whole number from 1 to 65535"),
            ):
                up.Command().create_parser("manage.py", "up").parse_args(["--port", text])

    def test_open_doors_are_warned_of(self) -> None:
        for host, keys, warned in (("0.0.0.0", False, True), ("0.0.0.0", True, False), ("127.0.0.1", False, False)):
            with override_settings(API_KEY_REQUIRED=keys), contextlib.redirect_stderr(io.StringIO()) as said:
                up.warn_of_open_access(host)
            self.assertEqual("API_KEY_REQUIRED=1" in said.getvalue(), warned)

    def test_where_it_listens_is_taken_from_the_environment(self) -> None:
        with patch.dict(os.environ, HOST="0.0.0.0", PORT="9000"):
            options = up.Command().create_parser("manage.py", "up").parse_args([])
        self.assertEqual((options.host, options.port), ("0.0.0.0", 9000))


class HangupTests(SimpleTestCase):
    def heard(self, *, had_terminal: bool, has_terminal: bool) -> str:
        service = Mock()
        with patch.object(sys, "stdin", Mock(isatty=lambda: has_terminal)):
            up.make_hangup_handler(service, had_terminal=had_terminal)()
        (call,) = service.method_calls
        return str(call[0])

    def test_it_ends_with_its_terminal_and_passes_any_other_hangup_on(self) -> None:
        self.assertEqual(self.heard(had_terminal=True, has_terminal=False), "stop")
        self.assertEqual(self.heard(had_terminal=True, has_terminal=True), "pass_on_hangup")
        self.assertEqual(self.heard(had_terminal=False, has_terminal=False), "pass_on_hangup")


class OutputTests(SimpleTestCase):
    def test_what_programs_write_past_their_logs_does_not_act_on_a_terminal(self) -> None:
        with patch("sys.stdout", io.StringIO()) as shown:
            up.LogOutput()("worker", "printed \x1b[2J\u202e by a model")
        self.assertEqual(shown.getvalue(), "worker | printed \\u001b[2J\\u202e by a model\n")


class AddressTests(SimpleTestCase):
    def test_the_report_names_an_address_that_can_be_opened(self) -> None:
        for host, url in (
            ("0.0.0.0", "http://127.0.0.1:80"), ("::", "http://[::1]:80"), ("::2", "http://[::2]:80"),
            ("a.example", "http://a.example:80"),
        ):  # fmt: skip
            report = StartupReport(host=host, port=80, log=lambda *_: None, stopping=threading.Event())
            self.assertEqual(report.url, url)
