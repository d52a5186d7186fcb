"""Row 55: web server, worker, broker and runner of batches are killed while the lines of a file are answered.

The web server is killed in the middle of another upload, of which nothing may be listed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests import echo
from tests.conditions import PATIENCE_S, wait_for
from tests.faults.engines import GENERATED
from tests.faults.fault import Fault
from tests.faults.trial import Trial
from tests.ports import HOST
from tools.launcher import programs

MODELS = """
[echo]
engine = "tests.echo:EchoEngine"

[lines]
engine = "tests.faults.engines:CompletingEcho"
task = "text-generation"
max_batch_size = 32
options = { fixed_ms = 20 }
"""
ENDPOINT = "/v1/completions"
HALF = "half.jsonl"
ENDED = ("completed", "failed", "expired", "cancelled")
BOUNDARY = "-----a-line-of-no-file"
FORM = f"multipart/form-data; boundary={BOUNDARY}"
REFUSED_EVERY = 100  # lines, one of which has a field that is refused


def write_form(content: bytes, name: str = "in.jsonl") -> bytes:
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{BOUNDARY}\r\n'
        f'Content-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    )
    return head.encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()


class FileBatch(Fault):
    row, title, ci, full = "55", "SIGKILL of web, worker, broker and runner in a batch from a file", 1, 10
    takes_s = 30.0
    chunk = 5
    options = {"models": MODELS}
    model = "echo"
    settle_limit_s = 3600.0
    recovery_limit_s = 120.0

    def trial(self, trial: Trial) -> None:
        trial.right = lambda inputs, output: output == [{GENERATED: echo.expected(inputs)["digest"]}]
        if "batches" not in trial.service.children:
            trial.service.start(programs.make_batch_runner())
        texts = {f"line {number}": trial.text() for number in range(400 if trial.quick else 50_000)}
        batch = self.begin(trial, texts)
        kinds = ["web", "worker1", "broker", "batches"] * (1 if trial.quick else 3)
        trial.random.shuffle(kinds)
        for kind in kinds:
            trial.pause(0.0, 1.5 if trial.quick else 20.0)
            self.kill(trial, kind)
        trial.healed()
        ended = wait_for(lambda: self.look(trial, batch), limit_s=self.settle_limit_s, every_s=0.5)
        trial.expect(ended, "the batch never ended")
        if ended:
            self.compare(trial, texts, ended)

    def begin(self, trial: Trial, texts: Mapping[str, str]) -> str:
        lines = [
            {
                "custom_id": name,
                "method": "POST",
                "url": ENDPOINT,
                "body": {"model": "lines", "prompt": text, **({} if self.is_taken(name) else {"colour": "red"})},
            }
            for name, text in texts.items()
        ]
        content = b"\n".join(json.dumps(line).encode() for line in lines)
        uploaded = trial.service.post("/v1/files", write_form(content), headers={"Content-Type": FORM})
        body = {"input_file_id": uploaded.json["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
        return str(trial.service.post("/v1/batches", body).json["id"])

    def is_taken(self, name: str) -> bool:
        return int(name.split()[1]) % REFUSED_EVERY != 0

    def kill(self, trial: Trial, kind: str) -> None:
        service = trial.service
        if kind == "broker":
            service.broker.kill()
            trial.pause(0.0, 0.5)
            service.broker.start()
            return
        with self.half_an_upload(service.port) if kind == "web" else contextlib.nullcontext():
            service.children[kind].kill()
        trial.pause(0.0, 0.5)
        if kind == "batches":
            service.start(service.children[kind].program)
        else:
            service.restart(kind)

    @contextlib.contextmanager
    def half_an_upload(self, port: int) -> Iterator[None]:
        form = write_form(b"x" * 10_000_000, HALF)
        with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)) as connection:
            connection.putrequest("POST", "/v1/files")
            connection.putheader("Content-Type", FORM)
            connection.putheader("Content-Length", str(len(form)))
            connection.endheaders(form[: len(form) // 2])
            yield

    def look(self, trial: Trial, batch: str) -> dict[str, Any] | None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer = trial.service.get(f"/v1/batches/{batch}")
            if answer.status == 200 and answer.json["status"] in ENDED:
                return dict(answer.json)
        return None

    def compare(self, trial: Trial, texts: Mapping[str, str], batch: Mapping[str, Any]) -> None:
        """Expect each line once, with its answer, and count right; the rows of the jobs are judged by the oracle."""
        refused = {name for name in texts if not self.is_taken(name)}
        counts = {"total": len(texts), "completed": len(texts) - len(refused), "failed": len(refused)}
        trial.expect(batch["status"] == "completed", f"the batch is {batch['status']}")
        trial.expect(batch["request_counts"] == counts, f"counts are {batch['request_counts']}, not {counts}")
        answers, errors = (self.read(trial, batch[f"{kind}_file_id"]) for kind in ("output", "error"))
        trial.expect(sorted(name for name, _ in errors) == sorted(refused), "other lines are in the file of errors")
        found = dict(answers)
        trial.expect(len(found) == len(answers), "a line has two answers")
        expected = {name: echo.expected(text)["digest"] for name, text in texts.items() if name not in refused}
        trial.expect(found == expected, "some answers are missing, or are those of other lines")
        files = trial.service.get("/v1/files").json["data"]
        trial.expect(HALF not in [file["filename"] for file in files], "half a file is listed")
        jobs = trial.service.jobs.filter(bulk=batch["id"].removeprefix("batch_"), error_code="")
        trial.accepted |= dict(jobs.values_list("pk", "inputs"))

    def read(self, trial: Trial, file_id: str) -> list[tuple[str, Any]]:
        content = trial.service.get(f"/v1/files/{file_id}/content").body
        lines = [json.loads(line) for line in content.splitlines()]
        return [(line["custom_id"], line["response"]["body"].get("choices", [{}])[0].get("text")) for line in lines]
