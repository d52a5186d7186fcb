"""What the web server lacks is there in its processes."""

import os
import socket
import subprocess
import sys
import unittest

from django.conf import settings

from project import stalled_clients
from tests.conditions import eventually

CALL = """
import os, signal, threading
from project import stop_signal
from tests.conditions import PATIENCE_S
called, read = threading.Event(), os.read
def noted(*arguments):
    signals = read(*arguments)
    print(signal.Signals(signals[0]).name, called.is_set())
    return signals
os.read = noted
stop_signal.call_when_stopped(called.set)
signal.signal(signal.SIGTERM, lambda *_: None)  # as the server does, later
signal.signal(signal.SIGUSR1, lambda *_: None)
os.kill(os.getpid(), signal.SIGUSR1)
os.kill(os.getpid(), signal.SIGTERM)
print("called", called.wait(PATIENCE_S))
"""

MAIN_PROCESS = """
import json, logging, sys
from granian.log import LogLevels, configure_logging
before = set(sys.modules)
with open("project/granian.json") as file:
    configure_logging(LogLevels.error, json.load(file))
logging.getLogger("_granian").error("Unexpected exit from worker-%d", 1)
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("_granian").exception("failed")
kept = {name.partition(".")[0] for name in sys.modules.keys() - before} - sys.stdlib_module_names
print({name for name in kept if not name.startswith("_sysconfigdata")})  # a part of Python's `sysconfig`
"""


class ServerTests(unittest.TestCase):
    def test_its_main_process_keeps_no_module_that_a_new_version_may_change(self) -> None:
        """The main process forks those that serve after a reload."""
        for form, message in (("text", "Unexpected exit from worker-1"), ("json", '"message": "failed"')):
            run = subprocess.run(
                [sys.executable, "-c", MAIN_PROCESS],
                cwd=settings.BASE_DIR,
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "LOG_FORMAT": form},
            )
            *lines, kept = run.stdout.splitlines()
            self.assertIn(message, "".join(lines))
            self.assertIn("ZeroDivisionError: ", "".join(lines))
            self.assertEqual(kept, "set()")

    def test_a_stop_calls_back_and_no_other_signal_does(self) -> None:
        run = subprocess.run(
            [sys.executable, "-c", CALL], cwd=settings.BASE_DIR, capture_output=True, text=True, check=True
        )
        self.assertEqual(run.stdout.splitlines(), ["SIGUSR1 False", "SIGTERM False", "called True"])

    @unittest.skipUnless(hasattr(socket, "TCP_USER_TIMEOUT"), "Linux only")
    def test_connections_of_a_server_that_listens_are_given_up_when_nothing_is_read(self) -> None:
        stalled_clients.set_tcp_timeouts()  # which begins to listen later
        with socket.create_server(("127.0.0.1", 0)) as listening:
            eventually(lambda: self.limit_ms(listening) == stalled_clients.STALLED_S * 1000)
            with socket.create_connection(listening.getsockname()):
                accepted, _ = listening.accept()
                with accepted:
                    self.assertEqual(self.limit_ms(accepted), stalled_clients.STALLED_S * 1000)
                    self.assertEqual(accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), 1)
                    self.assertEqual(
                        accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), stalled_clients.STALLED_S
                    )

    def limit_ms(self, connection: socket.socket) -> int:
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
