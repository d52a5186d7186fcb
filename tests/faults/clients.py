"""Rows 17, 18, 25 to 27: clients that leave, wait in crowds, repeat themselves, change their minds, or are greedy."""

from __future__ import annotations

import json
import re
import socket
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from uuid import UUID

from django.db.models import Count, Max, Min

from tests.conditions import PATIENCE_S, eventually
from tests.faults.fault import Fault
from tests.faults.load import post
from tests.faults.service import CATALOG
from tests.faults.trial import Trial
from tests.ports import HOST

JSON = {"Content-Type": "application/json"}
P95_S = 0.3  # of a plain GET beside many requests that wait
HELD = """
[held]                     # while its gate is there
engine = "tests.faults.engines:RecordingEcho"
max_batch_size = 8
time_limit_s = 600
options = { gate = "held" }
"""
NOBODY_WAITS = re.compile(rb"^inference_requests_waiting 0\.0$", re.MULTILINE)


def together(count: int, act: Callable[[int], Any]) -> list[Any]:
    """What `act` returned for each number; all begin at one moment."""
    barrier = threading.Barrier(count)

    def begin(number: int) -> Any:
        barrier.wait()
        return act(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def waiting(trial: Trial) -> int:
    """Requests, open streams among them."""
    found = re.search(rb"^inference_requests_waiting (\d+)\.0$", trial.service.get("/metrics").body, re.MULTILINE)
    return int(found[1]) if found else 0


def plain_get_is_quick(trial: Trial, job_id: UUID) -> None:
    took_s = [_get_s(trial, job_id) for _ in range(40 if trial.quick else 150)]
    p95_s = statistics.quantiles(took_s, n=20)[-1]
    trial.measured["95th percentile in ms"] = 1000 * p95_s
    trial.in_time(p95_s, P95_S, "the 95th percentile of a plain GET")


def _get_s(trial: Trial, job_id: UUID) -> float:
    started = time.perf_counter()
    status = trial.service.get(f"/v1/jobs/{job_id}").status
    took_s = time.perf_counter() - started
    trial.expect(status == 200, f"a plain GET was answered with {status}")
    time.sleep(0.02)
    return took_s


class Leaving(Fault):
    row, title, ci, full = "17", "clients leave, or get 504, and the jobs finish late", 1, 20
    takes_s = 4.0
    units = 50  # clients a trial
    options = {"environment": {"MAX_WAITING_REQUESTS": "64"}}  # a leak of waiters would soon use them up

    def trial(self, trial: Trial) -> None:
        texts = [trial.text() for _ in range(self.units)]
        delays = [trial.random.uniform(0.0, 0.5) for _ in texts]
        answers = together(len(texts), lambda number: self.call(trial, number, texts[number], delays[number]))
        trial.broken()
        trial.statuses[504] += len(answers)
        for text, job_id in zip(texts, answers, strict=True):
            if job_id:
                trial.accepted[job_id] = text

    def call(self, trial: Trial, number: int, text: str, delay_s: float) -> UUID | None:
        if number % 2:
            self.leave(trial.service.port, text, delay_s)
            return None
        status, body = post(trial.service.port, {"inputs": text}, JSON, "/v1/models/slow?timeout=0.1")
        trial.expect(status == 504, f"the wait was answered with {status} {body[:200]!r}")
        return UUID(json.loads(body)["job_id"]) if status == 504 else None

    def leave(self, port: int, text: str, delay_s: float) -> None:
        body = json.dumps({"inputs": text}).encode()
        head = f"POST /v1/models/slow?timeout=20 HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        with closing(socket.create_connection((HOST, port), timeout=PATIENCE_S)) as client:
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            time.sleep(delay_s)

    def after(self, trial: Trial) -> None:
        for job_id, text in trial.accepted.items():
            output = trial.service.get(f"/v1/jobs/{job_id}/output")
            trial.expect(output.status == 200 and output.json["echo"] == text, f"late GET: {output.body[:200]!r}")
        trial.until(lambda: NOBODY_WAITS.search(trial.service.get("/metrics").body), "no request waits any more")
        waited = trial.service.post("/v1/models/echo?timeout=60", {"inputs": "still granted"})
        trial.expect(waited.status == 200, f"a wait is not granted any more: {waited.status}")


class Waiting(Fault):
    row, title, ci, full = "18", "200 requests wait while jobs are submitted; a plain GET meanwhile", 1, 5
    options = {"blocking_threads": 512, "models": CATALOG + HELD}
    alone = True
    chunk = 1
    WAITERS = 200

    def trial(self, trial: Trial) -> None:
        trial.service.hold()
        ids = trial.submit_together([trial.text() for _ in range(self.WAITERS)], model="held")
        waits = threading.Thread(target=together, args=(self.WAITERS, lambda number: self.wait(trial, ids[number])))
        waits.start()
        eventually(lambda: waiting(trial) > self.WAITERS // 2, "the requests wait")
        with trial.load(per_s=30, clients=3) as load:
            plain_get_is_quick(trial, ids[0])
            trial.expect(waiting(trial), "nobody waits any more: nothing was measured")
        trial.service.release()
        waits.join()
        trial.add(load)

    def wait(self, trial: Trial, job_id: UUID) -> int:
        return trial.service.get(f"/v1/jobs/{job_id}?wait=60").status


class SameKey(Fault):
    row, title, ci, full = "25", "50 clients, one idempotency key", 5, 100
    takes_s, shares = 1.0, True
    chunk = 50
    CLIENTS = 50

    def trial(self, trial: Trial) -> None:
        text = trial.text()
        headers = {**JSON, "Idempotency-Key": trial.name.replace(" ", "-")}
        body = {"model": "echo", "inputs": text}
        answers = together(self.CLIENTS, lambda _: post(trial.service.port, body, headers))
        trial.broken()
        trial.statuses[202] += len(answers)
        trial.expect({status for status, _ in answers} <= {200, 202}, f"answers: {[status for status, _ in answers]}")
        ids = {json.loads(document).get("id") for _, document in answers}
        trial.expect(len(ids) == 1, f"{len(ids)} different jobs were answered")
        trial.accepted = {UUID(job_id): text for job_id in ids}

    def after(self, trial: Trial) -> None:
        trial.expect(not trial.stored(), f"{len(trial.stored())} other jobs were stored")


class Cancelling(Fault):
    row, title, ci, full = "26", "cancel at random moments", 5, 200
    takes_s, shares = 1.0, True
    units = 10  # jobs a trial
    chunk = 50

    def trial(self, trial: Trial) -> None:
        delays = [trial.random.uniform(0.0, 0.8) for _ in range(self.units)]
        ids = trial.submit_some(self.units)
        statuses = together(self.units, lambda number: self.cancel(trial, ids[number], delays[number]))
        trial.broken()
        for job_id, status in zip(ids, statuses, strict=True):
            trial.expect(status in ("cancelled", "succeeded"), f"cancel was answered with {status}")
            trial.outcomes[job_id] = frozenset({status})

    def cancel(self, trial: Trial, job_id: UUID, delay_s: float) -> str:
        time.sleep(delay_s)
        _, body = post(trial.service.port, {}, JSON, f"/v1/jobs/{job_id}/cancel")
        return str(json.loads(body)["status"])


class Greedy(Fault):
    row, title, ci, full = "27", "1,000 jobs of one key, then 10 of another", 1, 10
    chunk = 5
    options = {"environment": {"API_KEY_REQUIRED": "1", "API_KEY_MAX_QUEUED": "300"}}
    SHARE = 300  # of the queue that one key may take
    SLACK_S = 5.0

    def trial(self, trial: Trial) -> None:
        noisy, quiet = (trial.service.key(owner) for owner in ("noisy", "quiet"))
        with trial.load(per_s=10_000, count=1000, clients=20, headers=lambda: noisy) as load:
            load.finish()
        trial.add(load, refusals=[429])
        with trial.load(per_s=1000, count=10, clients=1, headers=lambda: quiet) as few:
            few.finish()
        trial.broken()
        trial.add(few)
        self.quiet = list(few.result.accepted)
        trial.expect(len(self.quiet) == 10, "the quiet key was refused")

    def after(self, trial: Trial) -> None:
        """Nobody waits for longer than one key's share of the queue takes."""
        jobs = trial.service.jobs.filter(pk__in=trial.accepted)
        times = jobs.aggregate(begun=Min("started_at"), ended=Max("finished_at"), count=Count("pk"))
        took_s = (times["ended"] - times["begun"]).total_seconds()
        bound_s = self.SHARE * took_s / times["count"] + self.SLACK_S
        waits = trial.took_s(self.quiet, "created_at", "started_at")
        trial.measured["wait of the quiet one in s"] = max(waits)
        trial.in_time(max(waits), bound_s, "the wait of the quiet one")
