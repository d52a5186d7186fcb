"""LOG_FORMAT=json: every line of every program is one object, a job's id leads through them, and no input is in any."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest import TestCase

from tests.conditions import eventually
from tests.e2e.test_up import Up
from tests.ports import HOST, free_port

MARK = "marked-input"
SECRETS = {"SECRET_KEY": "marked-secret-" + "k" * 40, "WEBHOOK_SECRET": "whsec_" + "bWFya2Vk" * 5}


class TestJsonLines(TestCase):
    def test_each_line_of_each_program_is_json_with_its_ids_and_without_inputs(self) -> None:
        file = Path(self.enterContext(tempfile.TemporaryDirectory()), "models.toml")
        file.write_text('[echo]\nengine = "tests.echo:EchoEngine"\nmax_batch_size = 4\n')
        self.port = free_port()
        options = {"LOG_FORMAT": "json", "LOG_LEVEL": "DEBUG", "WEBHOOK_HOSTS": HOST, "WEBHOOK_ALLOW_PRIVATE": "1"}
        with Up(self.port, file, more={**options, **SECRETS}) as up:
            up.shows("Ready on")
            failing = {how: self.submit(how) for how in ("exception", "nul", "crash", "invalid")}
            good = self.submit("", webhook=f"http://{HOST}:{free_port()}/hook")
            self.ask("POST", "/v1/jobs", {"model": "echo", "inputs": MARK, "wrong": MARK})
            self.ask("POST", "/v1/models/echo", {"inputs": MARK})
            self.ask("GET", "/v1/jobs", key=MARK)
            for job in (*failing.values(), good):
                eventually(lambda job=job: self.is_finished(job), "the job ends", limit_s=60)  # type: ignore[misc]
            up.shows(f"job={good} not delivered")
            up.process.send_signal(signal.SIGINT)
            self.assertEqual(up.process.wait(60), 0)
        for secret in (MARK, *SECRETS.values()):
            self.assertNotIn(secret, up.output)
        lines = [json.loads(line) for line in up.output.splitlines()]
        for line in lines:
            self.assertIsNotNone(datetime.fromisoformat(line["time"]).tzinfo)
            self.assertLessEqual({"level", "logger", "message"}, line.keys())
        self.assertEqual({line["program"] for line in lines}, {"up", "broker", "web", "worker", "webhooks"})
        as_text = [line for line in lines if line["logger"] == line["program"]]  # what was no JSON, and the launcher's
        self.assertLessEqual({line["program"] for line in as_text}, {"up", "broker"}, as_text)
        for how, job in (*failing.items(), ("", good)):
            with self.subTest(how):
                self.leads(job, lines)
        [told] = [line for line in lines if line["program"] == "webhooks" and line.get("job") == good]
        self.assertIn("webhook", told)

    def leads(self, job: str, lines: list[dict[str, Any]]) -> None:
        """From the request to the worker, and from the batch there to its end."""
        of_job = [line for line in lines if line.get("job") == job]
        request = next(line for line in of_job if line["logger"] == "api.access" and line.get("status") == 202)
        self.assertEqual((request["program"], request["request_id"]), ("web", f"request-{request['model']}"))
        recorded = next(line for line in of_job if line["logger"] == "inference.worker.claims")
        self.assertEqual(recorded["model"], "echo")
        of_batch = [line for line in lines if line.get("batch") == recorded["batch"]]
        self.assertEqual({line["worker"] for line in of_batch}, {recorded["worker"]})
        self.assertIn("inference.worker.settlement", [line["logger"] for line in of_batch])

    def submit(self, how: str, **fields: Any) -> str:
        body = {"model": "echo", "inputs": {"text": MARK, "fail": how}, **fields}
        return str(self.ask("POST", "/v1/jobs", body)["id"])

    def is_finished(self, job: str) -> bool:
        return self.ask("GET", f"/v1/jobs/{job}")["status"] in ("succeeded", "failed")

    def ask(self, method: str, path: str, body: Any = None, *, key: str = "") -> Any:
        headers = {"Content-Type": "application/json", "X-Request-Id": "request-echo"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        with contextlib.closing(http.client.HTTPConnection(HOST, self.port, timeout=60)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            return json.loads(connection.getresponse().read())
