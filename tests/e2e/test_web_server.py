"""The web server as systemd runs it: two processes, replaced under load without a lost request."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import threading
import unittest
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.conditions import PATIENCE_S, eventually
from tests.e2e.case import ShowingLog
from tests.ports import HOST
from tests.stack import Answer, Stack
from tools.launcher import programs
from tools.launcher.supervisor import Child

THREADS = 150  # of each process
PAUSE_S = 0.02  # between two requests of a client: without one, they take the cores that start the processes
CLOSED = ("RemoteDisconnected", "ConnectionResetError", "BrokenPipeError")  # and not refused


class TwoProcesses(Stack):
    """With two web processes."""

    def start_web(self) -> Child:
        program = programs.make_web_server(host=HOST, port=self.port, blocking_threads=THREADS)
        return self.start(replace(program, command=(*program.command, "--workers", "2")))

    def both(self, *, but: Iterable[int] = ()) -> list[int]:
        """The two processes, or none before both answer and are none of `but`."""
        pids = self.web_pids()
        return pids if len(pids) == 2 and not set(pids) & set(but) else []

    def web_pids(self) -> list[int]:
        """The processes that answer, each with its threads."""
        main = self.children["web"].pid
        if self.children["web"].exit_code is not None:
            raise AssertionError(f"the web server ended with {self.children['web'].exit_code}")
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        return [int(pid) for pid in children if len(os.listdir(f"/proc/{pid}/task")) > 2]


class Clients:
    """Ask one after the other, a moment after the last answer and each time on another connection, until they are
    stopped. As browsers and proxies do, they ask once more on one that was closed before anything was read of it."""

    def __init__(self, port: int, count: int) -> None:
        self.port = port
        self.answers: Counter[str] = Counter()
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self._send_requests) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def _send_requests(self) -> None:
        while not self.stopping.wait(PAUSE_S):
            self.answers[self._answer()] += 1

    def _answer(self) -> str:
        first = self._send_request()
        return self._send_request() if first in CLOSED else first

    def _send_request(self) -> str:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", "/v1/models")
            return str(connection.getresponse().status)
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        finally:
            connection.close()

    def stop(self) -> Counter[str]:
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        return self.answers


@unittest.skipUnless(Path("/proc/self/task").exists(), "Linux only")
class TestWebServer(ShowingLog):
    stack: TwoProcesses

    @classmethod
    def setUpClass(cls) -> None:
        cls.stack = cls.enterClassContext(TwoProcesses(workers=0))

    def test_a_killed_process_is_replaced_and_the_other_goes_on(self) -> None:
        """As the kernel kills one when memory is short. The test's name has it run before the reload, soon after which
        the server takes an end for a loop of crashes, and starts anew."""
        killed, other = eventually(self.stack.both, "two processes serve")
        os.kill(killed, signal.SIGKILL)
        self.assertIn(other, eventually(partial(self.stack.both, but=[killed]), "another one takes its place"))
        self.assertEqual(self.stack.get("/healthz").status, 200)

    def test_a_reload_loses_no_request(self) -> None:
        """SIGHUP, which ExecReload of the unit sends."""
        pids = eventually(self.stack.both, "two processes serve")
        clients = Clients(self.stack.port, 4)
        try:
            for _ in range(2):
                self.stack.children["web"].process.send_signal(signal.SIGHUP)
                pids = eventually(partial(self.stack.both, but=pids), "both processes are new")
        finally:
            answers = clients.stop()
        self.assertEqual(answers.keys(), {"200"})
        counted = b'inference_requests_total{dialect="service",method="GET",route="/v1/models",status="200"}'
        eventually(lambda: counted in self.stack.get("/metrics").body, "those who have ended have told their counts")

    def test_bodies_that_do_not_come_leave_threads_for_others(self) -> None:
        with contextlib.ExitStack() as connections:
            for _ in range(3 * THREADS):
                connection = connections.enter_context(socket.create_connection((HOST, self.stack.port)))
                connection.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n")
            refused = eventually(self.refused_in_both, "neither process reads another body")
            self.assertIn("Send the request again later", refused.json["detail"])
            self.assertEqual({self.stack.get("/healthz").status for _ in range(20)}, {200})
        eventually(self.are_read_by_both, "both processes read bodies again")

    def refused_in_both(self) -> Answer | None:
        """Return an answer once twenty requests in a row are refused: each process answers some of them."""
        answers = [self.stack.post("/v1/jobs", {}) for _ in range(20)]
        return answers[0] if {answer.json["code"] for answer in answers} == {"overloaded"} else None

    def are_read_by_both(self) -> bool:
        return {self.stack.post("/v1/jobs", {}).json["code"] for _ in range(20)} == {"invalid_input"}
