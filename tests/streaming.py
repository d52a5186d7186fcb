"""Streams over sockets: a stack of two web servers, and a client that keeps what comes."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import sys
import threading
from dataclasses import replace
from functools import partial
from uuid import UUID

from tests.conditions import PATIENCE_S, eventually
from tests.e2e.case import ShowingLog
from tests.generating import MODELS
from tests.ports import HOST, free_port
from tests.stack import Stack
from tools.launcher import programs
from tools.launcher.supervisor import Child, Program


class StreamStack(Stack):
    """Two web servers and a generator in place of a worker."""

    def __init__(self) -> None:
        super().__init__(models=MODELS, workers=0)
        self.ports = (self.port, free_port())

    def start_web(self) -> Child:
        self.start_other(1)
        child = self.start_other(0)
        self.start(Program(name="generator", command=(sys.executable, "-m", "tests.generating")))
        return child

    def start_other(self, number: int) -> Child:
        return self.start(replace(programs.make_web_server(host=HOST, port=self.ports[number]), name=f"web{number}"))

    def ready(self) -> None:
        super().ready()
        for port in self.ports:
            eventually(partial(is_open, port), "each web server answers")
        eventually(lambda: self.get("/v1/models/words").json["served"]["workers"], "the generator serves")

    def words(self, prompt: str, count: int) -> UUID:
        return self.submit(prompt, model="words", parameters={"max_new_tokens": count})


def is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


class StreamCase(ShowingLog):
    """Tests that share a stack; `url` is of its first web server."""

    stack: StreamStack

    @classmethod
    def setUpClass(cls) -> None:
        cls.stack = cls.enterClassContext(StreamStack())

    def setUp(self) -> None:
        self.url = f"http://{HOST}:{self.stack.port}"


class Listener(threading.Thread):
    """One connection: all that comes on it."""

    def __init__(self, port: int, job_id: UUID, *, after: str = "", query: str = "") -> None:
        super().__init__(daemon=True)
        self.connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
        headers = {"Last-Event-ID": after} if after else {}
        self.connection.request("GET", f"/v1/jobs/{job_id}/stream{query}", headers=headers)
        self.answer = self.connection.getresponse()
        self.id, self.text = after, ""
        self.names: list[str] = []
        self.start()

    def run(self) -> None:
        fields: dict[str, str] = {}
        with contextlib.suppress(OSError, http.client.HTTPException):  # it was cut, or left
            for line in iter(self.answer.readline, b""):
                name, _, value = line.decode().rstrip("\n").partition(": ")
                fields[name] = value
                if not name:
                    self.hear(fields)
                    fields = {}

    def hear(self, fields: dict[str, str]) -> None:
        if "event" in fields:
            self.names.append(fields["event"])
            self.id = fields.get("id", self.id)
        if fields.get("event") == "delta":
            self.text += json.loads(fields["data"])["token"]["text"]

    def leave(self) -> None:
        self.connection.sock.shutdown(socket.SHUT_RDWR)

    def has(self, characters: int) -> None:
        eventually(lambda: len(self.text) >= characters, f"{characters} characters have come")

    def ends(self) -> list[str]:
        eventually(lambda: not self.is_alive(), "the stream ends")
        return self.names
