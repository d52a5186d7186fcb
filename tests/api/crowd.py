"""Many clients that block on one web process at once: `python -m tests.api.crowd 1000`.

Each must get its answer, its 504 with a job's id, or an honest 503. A plain GET must stay under 300 ms meanwhile, at
the 95th percentile, and memory flat from round to round.
"""

from __future__ import annotations

import collections
import http.client
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conditions import PATIENCE_S

MODELS = """
[slow]
engine = "tests.echo:EchoEngine"
max_batch_size = 64
max_queued = 700
time_limit_s = 300
options = { fixed_ms = 700, gate = "held" }
"""
HOST = "127.0.0.1"
TIMEOUT_S = 3.0


@dataclass(slots=True)
class Outcome:
    statuses: list[str] = field(default_factory=list)  # an answer each
    lacking: list[Any] = field(default_factory=list)  # answers without what a client needs to go on
    gets_s: list[float] = field(default_factory=list)

    @property
    def answers(self) -> collections.Counter[str]:
        return collections.Counter(self.statuses)

    @property
    def get_p95_s(self) -> float:
        return statistics.quantiles(self.gets_s, n=20)[-1]


def crowd(port: int, clients: int, outcome: Outcome, *, timeout_s: float = TIMEOUT_S) -> None:
    threads = [threading.Thread(target=_client, args=(port, number, outcome, timeout_s)) for number in range(clients)]
    done = threading.Event()
    plain = threading.Thread(target=_plain_gets, args=(port, outcome, done))
    plain.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    plain.join()


def _client(port: int, number: int, outcome: Outcome, timeout_s: float) -> None:
    status, headers, body = _request(port, "POST", f"/v1/models/slow?timeout={timeout_s}", {"inputs": f"text {number}"})
    outcome.statuses.append(f"{status} {body.get('code', '')}".strip())
    right: dict[int, Callable[[], object]] = {
        200: lambda: body["echo"] == f"text {number}",
        503: lambda: "Retry-After" in headers and body["code"],
        504: lambda: "Retry-After" in headers and body["job_id"] and headers["Location"],
    }
    if status not in right or not right[status]():
        outcome.lacking.append((status, body))


def _plain_gets(port: int, outcome: Outcome, done: threading.Event) -> None:
    while not done.wait(0.02):
        started = time.monotonic()  # a figure of the program, that no test asserts
        status, _, body = _request(port, "GET", "/v1/models/slow", None)
        outcome.gets_s.append(time.monotonic() - started)
        if status != 200:
            outcome.lacking.append((status, body))


def _request(port: int, method: str, path: str, body: Any) -> tuple[int, Any, Any]:
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.headers, json.loads(answer.read())
    finally:
        connection.close()


def memory_mib(pid: int) -> float:
    """Resident memory of a process and its children."""
    total = 0
    for task in (pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())):
        status = Path(f"/proc/{task}/status").read_text()
        total += next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return total / 1024


def main() -> None:
    import os

    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
    from tests.stack import Stack
    from tools.launcher import programs
    from tools.launcher.supervisor import raise_open_files_limit

    raise_open_files_limit()

    class Full(Stack):
        def start_web(self) -> Any:
            return self.start(programs.make_web_server(host=HOST, port=self.port))

    with Full(models=MODELS) as stack:
        pid = stack.children["web"].pid
        for number in range(4):
            outcome = Outcome()
            crowd(stack.port, int(sys.argv[1]), outcome)
            print(  # noqa: T201
                f"round {number + 1}: {dict(outcome.answers)}, lacking {outcome.lacking[:2]}, GET p95"
                f" {outcome.get_p95_s * 1000:.0f} ms of {len(outcome.gets_s)}, memory {memory_mib(pid):.0f} MiB"
            )


if __name__ == "__main__":
    main()
