"""Row 19: what is no message of ours lies in the queue."""

from __future__ import annotations

import base64
import json
import math
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from inference.broker.messages import JobMessage, make_redis_envelope
from tests.faults.fault import Fault
from tests.faults.trial import Trial

CONSUMING_AGAIN_S = 10.0
QUEUE = "inference.echo"

Make = Callable[["Forger"], bytes | str]


class Forger:
    """Messages like those of a job, but for one thing. `victim` is a finished job, `marker` must not be made."""

    def __init__(self, victim: Any, marker: Path) -> None:
        self.victim, self.marker = victim, marker

    def envelope(self, job_id: Any = None, **changes: Any) -> dict[str, Any]:
        message = JobMessage(
            job_id=str(job_id or uuid4()),
            model="echo",
            queue=QUEUE,
            group="",
            size=1,
            length=1,
            priority=2,
            created_at=time.time(),
            expires_at=None,
        )
        return {**json.loads(make_redis_envelope(message)), **changes}

    def with_body(self, body: Any) -> str:
        return json.dumps(self.envelope(body=base64.b64encode(json.dumps(body).encode()).decode()))

    def with_hints(self, **hints: Any) -> str:
        return self.with_body([[str(uuid4())], {"model": "echo", **hints}, {}])

    def with_headers(self, **headers: Any) -> str:
        envelope = self.envelope()
        return json.dumps({**envelope, "headers": {**envelope["headers"], **headers}})

    def pickled(self) -> str:
        body = base64.b64encode(pickle.dumps(_MakesFile(str(self.marker)))).decode()
        return json.dumps(
            self.envelope(body=body, **{"content-type": "application/x-python-serialize", "content-encoding": "binary"})
        )


class _MakesFile:
    def __init__(self, file: str) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (self.file,))


KINDS: dict[str, Make] = {
    "not JSON": lambda _: "%%% no JSON",
    "not UTF-8": lambda _: b"\xff\xfe\x00",
    "a JSON number": lambda _: "42",
    "an empty object": lambda _: "{}",
    "without properties": lambda forger: json.dumps(forger.envelope(properties=None)),
    "a body that is no base64": lambda forger: json.dumps(forger.envelope(body="***")),
    "a pickle": lambda forger: forger.pickled(),
    "an unknown task": lambda forger: forger.with_headers(task="os.system"),
    "another task that Celery knows": lambda forger: forger.with_headers(task="celery.backend_cleanup"),
    "an unknown job": lambda forger: json.dumps(forger.envelope()),
    "a finished job": lambda forger: json.dumps(forger.envelope(forger.victim)),
    "hints of the wrong types": lambda forger: forger.with_hints(size="many", created_at=[], priority={}),
    "an infinite size": lambda forger: forger.with_hints(size=math.inf),
    "a priority beyond all": lambda forger: forger.with_hints(priority=10**300),
    "a creation time of 400 digits": lambda forger: forger.with_hints(created_at=10**400),
    "a creation time that is no number": lambda forger: forger.with_hints(created_at=math.nan),
    "an id that is a list": lambda forger: forger.with_headers(id=[1]),
    "no arguments": lambda forger: forger.with_body([[], {}, {}]),
    "arguments that are no list": lambda forger: forger.with_body("args"),
    "deep nesting": lambda forger: forger.with_hints(group="x", deep=json.loads("[" * 900 + "]" * 900)),
    "another model": lambda forger: forger.with_hints(model="../../etc/passwd"),
}


class Malformed(Fault):
    row, title, ci, full = "19", f"malformed messages, {len(KINDS)} kinds", len(KINDS), 4 * len(KINDS)
    takes_s, shares = 1.0, True
    chunk = 2 * len(KINDS)

    def trial(self, trial: Trial) -> None:
        kind, make = list(KINDS.items())[trial.number % len(KINDS)]
        marker = trial.service.folder / "run-by-a-message"
        victim = trial.submit(trial.text())
        trial.until(lambda: not trial.service.unfinished([victim]), "a job before it")
        trial.service.broker.put(QUEUE, make(Forger(victim, marker)))
        trial.broken()
        job_id = trial.submit(trial.text())
        trial.until(lambda: self.is_consumed(trial, job_id), f"{kind}: what follows is consumed", CONSUMING_AGAIN_S)
        trial.expect(not marker.exists(), f"{kind}: what a message carried was run")

    def is_consumed(self, trial: Trial, job_id: UUID) -> bool:
        """Return whether the job has ended, after a restart of what has ended itself."""
        if trial.service.restart_ended():
            trial.measured["restarts of the worker"] = 1
        return not trial.service.unfinished([job_id])

    def after(self, trial: Trial) -> None:
        claims = [job_id for job_id, what, _ in trial.oracle.events() if what == "claim"]
        trial.expect(set(claims) <= set(trial.accepted), "a job was run that was not listed")
        trial.expect(len(claims) == len(set(claims)), "a finished job was run again")
