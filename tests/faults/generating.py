"""Rows 40 to 47: jobs that are generated step by step, and streams of their text, while something breaks.

Each input says how many words its answer has, and each word follows from the input: what a client has read is compared
to the character.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from batch_inference_client.errors import ClientError
from batch_inference_client.http import Http
from inference.models import Status
from tests import words
from tests.conditions import PATIENCE_S, eventually
from tests.echo import Fail
from tests.faults.backends import REDIS
from tests.faults.clients import NOBODY_WAITS, plain_get_is_quick, waiting
from tests.faults.fault import Fault
from tests.faults.trial import Trial
from tests.ports import HOST, free_port
from tests.streaming import is_open
from tools.launcher import programs

MODELS = """
[story]
task = "text-generation"
engine = "tests.words:WordsEngine"
max_batch_size = 8
max_batch_tokens = 1200
max_queued = 100000
options = { step_ms = 10, capacity = 1200 }

[words]                    # of any input, so of one that misbehaves in the middle
engine = "tests.words:WordsEngine"
max_batch_size = 8
max_queued = 100000
options = { step_ms = 10, capacity = 1200 }
parameters = { max_new_tokens = { type = "integer", min = 1, max = 1000 } }
"""
LONGEST = 150  # words, 1.5 s
WORDS = re.compile(r"(\d+) words$")


def length(value: Any) -> int:
    """How many words the answer to this input has."""
    found = WORDS.search(value if isinstance(value, str) else value["text"])
    if not found:
        raise ValueError(f"{value!r} says no number of words")
    return int(found[1])


def is_expected(inputs: Any, output: Any) -> bool:
    return bool(output == words.expected(inputs, length(inputs)))


class Reader(threading.Thread):
    """A client that reads a stream to its end, and goes on behind its last event wherever a connection broke off: at
    the next of the `ports`. `on_event` is called with the number of each event."""

    def __init__(
        self,
        ports: Sequence[int],
        job_id: UUID,
        on_event: Callable[[int], object] = bool,
        *,
        limit_s: float = PATIENCE_S,
    ) -> None:
        super().__init__(daemon=True)
        self.services = [Http(f"http://{HOST}:{port}", connections=1) for port in ports]
        self.job_id, self.on_event = job_id, on_event
        self.text, self.last_id, self.connections = "", "", 0
        self.restarts = 0
        self.job: dict[str, Any] | None = None  # once it has ended
        self.give_up_at = time.monotonic() + limit_s
        self.start()

    def run(self) -> None:
        number = itertools.count()
        for service in itertools.cycle(self.services):
            self.connections += 1
            with contextlib.suppress(ClientError):
                for event in service.stream(str(self.job_id), after=self.last_id):
                    if event:
                        self.hear(event)
                        self.on_event(next(number))
            service.close()
            if self.job or time.monotonic() > self.give_up_at:
                return
            time.sleep(0.1)

    def hear(self, event: Any) -> None:
        self.last_id, self.job = event.id or self.last_id, event.job
        if event.kind == "restart":
            self.text, self.restarts = "", self.restarts + 1
        self.text += event.text


class Generating(Fault):
    """Two replicas, jobs of random lengths, of which some are read as streams."""

    options = {"models": MODELS}
    shares = True
    model = "story"
    chunk = 25
    JOBS, READ = 24, 3  # every third
    WORDS = (5, LONGEST)

    def trial(self, trial: Trial) -> None:
        trial.service.whole_again()
        trial.right = is_expected
        self.ports = [trial.service.port]
        self.prepare(trial)
        counts = [trial.random.randrange(*self.WORDS) for _ in range(self.JOBS)]
        self.ids = [self.submit(trial, self.text(trial, count)) for count in counts]
        self.readers = [Reader(self.ports, job_id, self.on_event) for job_id in self.ids[:: self.READ]]
        trial.until_running("story")
        trial.pause(0.0, 1.0)
        self.strike(trial)

    def prepare(self, trial: Trial) -> None:
        """Before the jobs are submitted."""

    def on_event(self, number: int) -> None:
        """In the thread of a reader, which goes on when this returns."""

    def strike(self, trial: Trial) -> None:
        raise NotImplementedError

    def text(self, trial: Trial, count: int) -> str:
        return f"{trial.text()} {count} words"

    def submit(self, trial: Trial, value: Any, *outcomes: str, model: str = "story") -> UUID:
        return trial.submit(value, *outcomes, model=model, parameters={"max_new_tokens": length(value)})

    def after(self, trial: Trial) -> None:
        for reader in self.readers:
            reader.join(max(0.0, reader.give_up_at - time.monotonic()))
            self.compare(trial, reader)
        trial.until(lambda: NOBODY_WAITS.search(trial.service.get("/metrics").body), "no stream is open any more")

    def compare(self, trial: Trial, reader: Reader) -> None:
        if reader.job is None:
            trial.problems.append(f"the stream of {reader.job_id} has no end after {len(reader.text)} characters")
            return
        text = self.expected(trial, reader.job_id)
        status = reader.job["status"]
        is_right = reader.text == text if status == Status.SUCCEEDED else text.startswith(reader.text)
        trial.expect(is_right, f"the stream of {reader.job_id}, {status}, is not its text: {reader.text[:200]!r}")
        trial.expect(not reader.restarts, f"the stream of {reader.job_id} began anew {reader.restarts} times")

    def expected(self, trial: Trial, job_id: UUID) -> str:
        return str(words.expected(inputs := trial.accepted[job_id], length(inputs))[0]["generated_text"])

    def cancel(self, trial: Trial, job_id: UUID) -> None:
        status = trial.service.post(f"/v1/jobs/{job_id}/cancel", {}).json["status"]
        trial.expect(status in ("cancelled", "succeeded"), f"cancel was answered with {status}")
        trial.outcomes[job_id] = frozenset({status})


class ChildKilled(Generating):
    row, title, ci, full = "40", "SIGKILL of one child between any two steps, streams are read", 1, 30

    def strike(self, trial: Trial) -> None:
        os.kill(trial.random.choice(trial.service.replica_pids()), signal.SIGKILL)
        trial.broken()


class WorkerKilled(Generating):
    row, title, ci, full = "41", "SIGKILL of the whole worker while it generates, streams are read", 1, 30
    recovery_limit_s = 45.0  # where a worker takes long to start, there is all of it to do yet

    def strike(self, trial: Trial) -> None:
        trial.service.children["worker1"].kill()
        trial.broken()
        trial.pause(0.0, 1.0)
        trial.service.restart("worker1")


class BrokerAway(Generating):
    row, title, ci, full = "42", "Redis away for 0.5 to 4 s while streams are read", 1, 30
    brokers = (REDIS,)

    def strike(self, trial: Trial) -> None:
        trial.service.broker.kill()
        trial.pause(0.5, 4.0)
        trial.service.broker.start()
        trial.healed()


class Cancelled(Generating):
    """Beside the others one that fills each replica is cancelled: what waits for its room begins soon."""

    row, title, ci, full = "43", "jobs cancelled at any step, streams are read", 1, 30
    FILLING = 1000  # words of the 1200 that there is room for: 10 s
    FREE_S = 6.0  # of an answer that nobody wants any more, the most that others may wait for

    def prepare(self, trial: Trial) -> None:
        self.large = [
            self.submit(trial, self.text(trial, self.FILLING), "cancelled") for _ in trial.service.replica_pids()
        ]
        running = trial.service.jobs.filter(pk__in=self.large, status=Status.RUNNING)
        trial.until(lambda: running.count() == len(self.large), "each replica has a large one")

    def strike(self, trial: Trial) -> None:
        for job_id in trial.random.sample(self.ids, self.JOBS // 4):
            self.cancel(trial, job_id)
            trial.pause(0.0, 0.1)
        waiting = self.submit(trial, self.text(trial, self.FILLING // 2))
        for job_id in self.large:
            self.cancel(trial, job_id)
        cancelled_at = time.monotonic()
        started = trial.service.jobs.filter(pk=waiting).exclude(status=Status.QUEUED)
        trial.until(started.exists, "one that waited for room begins", self.FREE_S)
        trial.measured["s until its room was free"] = time.monotonic() - cancelled_at
        trial.broken()


class Poison(Generating):
    """Beside the others, in batches of another model in the same replicas."""

    row, title, ci, full = "44", "an input that raises, or crashes the process, at any step; streams are read", 2, 30
    FAILS = {Fail.EXCEPTION: "engine_error", Fail.CRASH: "crashed"}
    BESIDE = 7
    recovery_limit_s = 60.0

    def strike(self, trial: Trial) -> None:
        fail, code = list(self.FAILS.items())[trial.number % 2]
        for _ in range(self.BESIDE):
            self.submit(trial, self.text(trial, trial.random.randrange(5, LONGEST)), model="words")
        at = trial.random.randrange(LONGEST)
        self.submit(trial, {"fail": fail, "at": at, "text": self.text(trial, LONGEST)}, code, model="words")
        trial.broken()


class ReadersGone(Generating):
    """Half of those who read hang up in the middle."""

    row, title, ci, full = "45", "readers of streams leave at any event", 1, 30

    def strike(self, trial: Trial) -> None:
        for job_id in self.ids[1::3]:
            self.leave(trial, job_id)
        trial.broken()

    def leave(self, trial: Trial, job_id: UUID) -> None:
        with contextlib.closing(Http(f"http://{HOST}:{trial.service.port}")) as service:
            events = service.stream(str(job_id), after="")
            for _ in range(trial.random.randrange(1, 5)):
                next(events, None)
            events.close()  # type: ignore[attr-defined]


class ReadersStalled(Generating):
    """They read one event, and nothing more until all jobs have ended."""

    row, title, ci, full = "46", "readers of streams stall in the middle, then read on", 1, 30

    def prepare(self, trial: Trial) -> None:
        self.goes_on = threading.Event()

    def on_event(self, number: int) -> None:
        if not number:
            self.goes_on.wait()

    def strike(self, trial: Trial) -> None:
        trial.broken()
        eventually(lambda: not trial.service.unfinished(self.ids), "jobs end though nobody reads")
        self.goes_on.set()


class WebKilled(Generating):
    row, title, ci, full = "47", "SIGKILL of a web process with open streams, which are read on at another", 1, 30

    def prepare(self, trial: Trial) -> None:
        other = free_port()
        self.ports.append(other)
        name = f"other {trial.number}"
        trial.service.start(replace(programs.make_web_server(host=HOST, port=other, blocking_threads=64), name=name))
        eventually(lambda: is_open(other), "the other web process answers")

    def strike(self, trial: Trial) -> None:
        trial.service.children["web"].kill()
        trial.broken()
        trial.pause(0.0, 1.0)
        trial.service.restart("web")
        trial.service.ready()

    def after(self, trial: Trial) -> None:
        super().after(trial)
        trial.expect(any(reader.connections > 1 for reader in self.readers), "no stream broke off")
        trial.service.children.pop(f"other {trial.number}").kill()


class ManyOpen(Generating):
    """Each is told a word ten times a second."""

    row, title, ci, full = "18", "200 streams are open; a plain GET meanwhile", 0, 5
    takes_s, shares = 40.0, False
    alone = True
    chunk = 1
    options = {
        "blocking_threads": 512,
        "models": """
[story]
task = "text-generation"
engine = "tests.words:WordsEngine"
max_batch_size = 128
options = { step_ms = 100, capacity = 100000 }
""",
    }
    JOBS, READ = 200, 1
    WORDS = (300, 301)

    def strike(self, trial: Trial) -> None:
        trial.until(lambda: waiting(trial) == self.JOBS, "each stream is open")
        plain_get_is_quick(trial, self.ids[0])
        trial.expect(waiting(trial) == self.JOBS, f"{waiting(trial)} streams are open at the end")
