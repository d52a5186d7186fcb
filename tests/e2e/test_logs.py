"""Row 23 of the faults in the logs of the running programs: no input, secret or key is in any line, whatever fails. In
JSON each line is one object, and a job's id leads through them."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest import TestCase
from urllib.parse import quote, urlencode

from django.contrib.auth import get_user_model
from django.test import tag

from api.models import ApiKey
from tests import databases
from tests.conditions import PATIENCE_S, eventually
from tests.e2e.buggy import BUGS, IN_WEB, IN_WEBHOOKS, IN_WORKER
from tests.e2e.test_up import Up
from tests.inference.test_admin import INVISIBLE, UNSEEN
from tests.ports import HOST, free_port
from tests.second_look import TAG

MARK = "marked-input"
SECRETS = {"SECRET_KEY": "marked-secret-" + "k" * 40, "WEBHOOK_SECRET": "whsec_" + "bWFya2Vk" * 5}
OPTIONS = {
    "DJANGO_SETTINGS_MODULE": "tests.e2e.buggy", "LOG_LEVEL": "DEBUG", "WEBHOOK_HOSTS": HOST,
    "WEBHOOK_ALLOW_PRIVATE": "1", "API_KEY_REQUIRED": "0",
}  # fmt: skip
MODELS = """[echo]
engine = "tests.echo:EchoEngine"
max_batch_size = 4

[failing]
engine = "tests.echo:EchoEngine"
"""
FAILURES = ("exception", "nul", "crash", "invalid")
STAMP = "2026-11-23 12:00:00,000 INFO    api.access"
FORGED = re.compile(rf"(\w+ *\| )*{STAMP}")
HOSTILE = (
    f"late\n{STAMP} forged", f"late\r{STAMP} forged", f"late\r\nweb    | {STAMP} forged", f"late\u2028{STAMP} forged",
    "\x1b[2J\x1b]0;owned\x07", "".join(INVISIBLE),
)  # fmt: skip
HEADERS = {
    "Authorization": f"Bearer {MARK}", "Idempotency-Key": f"{MARK} {MARK}", "X-Request-Id": f"{MARK} {MARK}",
    "traceparent": MARK, "Cookie": f"sessionid={MARK}", "Content-Encoding": MARK,
}  # fmt: skip


class Client:
    """Of one service, to which it does all that fails."""

    def __init__(self, up: Up, port: int, database: str) -> None:
        self.up, self.port, self.database = up, port, database

    def play(self) -> None:
        self.up.shows("Ready on")
        self.failing = {how: self.submit({"text": MARK, "fail": how}) for how in FAILURES}
        self.good = self.submit(MARK, webhook=f"http://{HOST}:{free_port()}/hook?token={MARK}")
        self.bugs = [
            self.submit(f"{MARK} {IN_WORKER}", model="failing"),
            self.submit(f"{MARK} {IN_WEBHOOKS}", webhook=f"http://{HOST}:{free_port()}/hook"),
        ]
        self.request("POST", "/v1/jobs", {"model": "echo", "inputs": f"{MARK} {IN_WEB}"})
        self.refused()
        self.with_secrets()

    def refused(self) -> None:
        self.request("POST", "/v1/jobs", {"model": "echo", "inputs": MARK, "wrong": MARK})
        self.request("POST", "/v1/jobs", {"model": "echo", "inputs": MARK, "webhook": f"http://elsewhere/{MARK}"})
        self.request("POST", "/v1/jobs/bulk", {"model": "echo", "inputs": [MARK, None]})
        self.request("POST", "/v1/jobs", f'{{"model": "echo", "inputs": "{MARK}"'.encode())
        self.request("POST", "/v1/models/echo/v1/chat/completions", {"messages": [{"role": "user", "content": MARK}]})
        self.request("POST", "/v1/models/echo", {"inputs": MARK})

    def with_secrets(self) -> None:
        """In headers, in a query, in a form, and a key that is one."""
        for name, value in HEADERS.items():
            self.request("GET", f"/v1/jobs?key={MARK}", headers={name: value})
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        self.request("POST", "/admin/login/", urlencode({"username": MARK, "password": MARK}).encode(), headers=form)
        alias = f"logs-{self.port}"
        databases.attach(alias, self.database)
        owner, _ = get_user_model().objects.using(alias).get_or_create(username="owner")
        self.key = ApiKey.objects.db_manager(alias).issue_key(owner=owner)[1]
        databases.drop(alias)
        self.request(
            "POST", "/v1/jobs", {"model": "echo", "inputs": MARK}, headers={"Authorization": f"Bearer {self.key}"}
        )

    def end(self, case: TestCase) -> None:
        for job in (*self.failing.values(), self.good, *self.bugs):
            eventually(lambda job=job: self.is_finished(job), "the job ends")  # type: ignore[misc]
        self.up.shows(f"job={self.good} not delivered")
        eventually(lambda: self.up.output.count("KeyError: ") >= len(BUGS), "each bug is told of")
        self.up.process.send_signal(signal.SIGINT)
        case.assertEqual(self.up.process.wait(PATIENCE_S), 0)
        self.up.reader.join()
        for secret in (MARK, self.key, *SECRETS.values()):
            case.assertNotIn(secret, self.up.output)
        for place in ("validate_request", "make_outcome", "_post"):
            case.assertRegex(self.up.output, rf"line \d+, in {place}\b")

    def submit(self, inputs: Any, **fields: Any) -> str:
        return str(self.request("POST", "/v1/jobs", {"model": "echo", "inputs": inputs, **fields})["id"])

    def is_finished(self, job: str) -> bool:
        return self.request("GET", f"/v1/jobs/{job}")["status"] in ("succeeded", "failed")

    def request(self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None) -> Any:
        """What is answered, where that is JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        own = {"Content-Type": "application/json", "X-Request-Id": "request-echo", **(headers or {})}
        with contextlib.closing(http.client.HTTPConnection(HOST, self.port, timeout=PATIENCE_S)) as connection:
            connection.request(method, path, data, own)
            answer = connection.getresponse().read()
        with contextlib.suppress(ValueError):
            return json.loads(answer)


@tag(TAG)
class TestLines(TestCase):
    def test_no_line_of_any_program_has_an_input_a_secret_or_a_key(self) -> None:
        """In both formats, of two services beside each other."""
        file = Path(self.enterContext(tempfile.TemporaryDirectory()), "models.toml")
        file.write_text(MODELS)
        clients = []
        for options in ({"LOG_FORMAT": "json"}, {"DEVELOPMENT": "0"}):
            database = file.parent / f"{(port := free_port())}.sqlite3"
            databases.prepare(database)
            own = {"DATABASE_URL": f"sqlite:///{database}"}
            up = self.enterContext(Up(port, file, more={**OPTIONS, **options, **SECRETS, **own}))
            clients.append(Client(up, port, own["DATABASE_URL"]))
        for client in clients:
            client.play()
        for client in clients:
            client.end(self)
        self.each_is_json(clients[0])

    def each_is_json(self, client: Client) -> None:
        lines = [json.loads(line) for line in client.up.output.splitlines()]
        for line in lines:
            self.assertIsNotNone(datetime.fromisoformat(line["time"]).tzinfo)
            self.assertLessEqual({"level", "logger", "message"}, line.keys())
        self.assertEqual({line["program"] for line in lines}, {"up", "broker", "web", "worker", "batches", "webhooks"})
        as_text = [line for line in lines if line["logger"] == line["program"]]  # what was no JSON, and the launcher's
        self.assertLessEqual({line["program"] for line in as_text}, {"up", "broker"}, as_text)
        for how, job in (*client.failing.items(), ("", client.good)):
            with self.subTest(how):
                self.leads(job, lines)
        records = [line for line in lines if line["program"] == "webhooks" and line.get("job") == client.good]
        for record in records:  # one a try: nobody listens there, and a slow machine has time for a second
            self.assertIn("not delivered, again in", record["message"])
        self.assertEqual(len({record["webhook"] for record in records}), 1)

    def leads(self, job: str, lines: list[dict[str, Any]]) -> None:
        """From the request to the worker, and from the batch there to its end."""
        of_job = [line for line in lines if line.get("job") == job]
        request = next(line for line in of_job if line["logger"] == "api.access" and line.get("status") == 202)
        self.assertEqual((request["program"], request["request_id"]), ("web", f"request-{request['model']}"))
        recorded = next(line for line in of_job if line["logger"] == "inference.worker.child.batch_job_rows")
        self.assertEqual(recorded["model"], "echo")
        of_batch = [line for line in lines if line.get("batch") == recorded["batch"]]
        self.assertEqual({line["worker"] for line in of_batch}, {recorded["worker"]})
        self.assertIn("inference.worker.scheduling.settlement", [line["logger"] for line in of_batch])


@tag(TAG)
class TestHostileTexts(TestCase):
    """With `DEVELOPMENT=1`, where lines quote what a model said."""

    def test_no_line_of_any_program_is_forged_or_acts_on_a_terminal(self) -> None:
        file = Path(self.enterContext(tempfile.TemporaryDirectory()), "models.toml")
        file.write_text(MODELS)
        data = file.parent / f"{(port := free_port())}.sqlite3"
        databases.prepare(data)
        database = f"sqlite:///{data}"
        options = {"DATABASE_URL": database, "LOG_LEVEL": "DEBUG", "WEBHOOK_HOSTS": HOST, "WEBHOOK_ALLOW_PRIVATE": "1"}
        up = self.enterContext(Up(port, file, more={**options, **SECRETS}))
        client = Client(up, port, database)
        up.shows("Ready on")
        jobs = [job for text in HOSTILE for job in self.play(client, text)]
        for job in jobs:
            eventually(lambda job=job: client.is_finished(job), "the job ends")  # type: ignore[misc]
            up.shows(f"job={job} not delivered")
        file.write_text(f"{MODELS}\n[{json.dumps(HOSTILE[0])}]\nengine = {json.dumps(HOSTILE[1])}\n")
        up.shows("Nothing changes before that is put right")
        up.process.send_signal(signal.SIGINT)
        self.assertEqual(up.process.wait(PATIENCE_S), 0)
        up.reader.join()
        self.assertIn("told to fail: late", up.output)
        self.assertIsNone(UNSEEN.search(up.output))
        self.assertEqual([line for line in up.output.splitlines() if FORGED.match(line)], [])

    def play(self, client: Client, text: str) -> list[str]:
        """In all that a line may quote: the jobs that come of it."""
        quoted = quote(text)
        for path in (f"/v1/jobs/{quoted}", f"/v1/models/{quoted}?{quoted}", f"/admin/{quoted}/", f"/{quoted}"):
            client.request(
                "GET", path, headers={"traceparent": quoted, "X-Request-Id": text.encode("unicode_escape").decode()}
            )
        client.request("POST", "/v1/jobs", {"model": text, "inputs": text})
        client.request("POST", "/v1/jobs", {"model": "echo", "inputs": text, text: text})
        hook = f"http://{HOST}:{free_port()}/{quoted}"
        return [client.submit({"text": text, "fail": fail}, webhook=hook) for fail in ("exception", text)]
