"""Row 49: an hour of generated load, in which clients alone misbehave, and after which no memory has grown."""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from random import Random
from uuid import UUID

from batch_inference_client.errors import ClientError
from batch_inference_client.http import Http
from benchmarks.generation.answers import text_of
from tests.faults import greedy, holdings
from tests.faults.clients import JSON
from tests.faults.company import LIMIT_S, InCompany
from tests.faults.table import say
from tests.faults.trial import Trial
from tests.ports import HOST

HOUR_S = 3600.0
QUICK_S = 60.0  # when it is asked for by name in a quick run
EVERY_S = 5.0
REPORT_EVERY = 12  # samples
CLIENTS = 6
PAUSE_S = 10.0  # of a client, at most: about a job a second in all
EVENTS = 4  # of a stream, at most, before its reader leaves
MAY_GROW_MB, MAY_GROW = 4.0, 0.05  # beside a share of what it was


@dataclass(slots=True)
class Course:
    """Of the memory, in MiB, by process."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def take(self, found: dict[str, float]) -> None:
        for name, value in found.items():
            self.values.setdefault(name, []).append(value)

    def ends(self) -> dict[str, tuple[float, float]]:
        """The medians of the second sixth and of the last: of an hour, minutes 10 to 20 and 50 to 60."""
        return {name: _ends(values, len(values) // 6) for name, values in self.values.items()}

    def grown(self) -> list[str]:
        return [
            f"{name} grew from {before:.1f} to {after:.1f} MiB"
            for name, (before, after) in self.ends().items()
            if after > before * (1 + MAY_GROW) + MAY_GROW_MB
        ]


def _ends(values: list[float], sixth: int) -> tuple[float, float]:
    return statistics.median(values[sixth : 2 * sixth]), statistics.median(values[-sixth:])


class HourOfStreams(InCompany):
    row, title, ci, full = "49", "an hour of streams that are read, left, resumed and cancelled", 0, 1
    takes_s = 60.0
    PROMPTS = 20

    def trial(self, trial: Trial) -> None:
        self.prepare(trial)
        self.lock = threading.Lock()
        self.until = time.monotonic() + (QUICK_S if trial.quick else HOUR_S)
        course = Course()
        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(self.client, trial, number) for number in range(CLIENTS)]
            while time.monotonic() < self.until:
                course.take(holdings.memory_mb(trial.service))
                if len(course.values["web"]) % REPORT_EVERY == 0:
                    self.report_memory(trial, course)
                time.sleep(EVERY_S)
        for client in clients:
            client.result()
        trial.problems += course.grown()
        for name, (before, after) in course.ends().items():
            say(f"{trial.name}: {name}: {before:.1f} MiB in the second sixth, {after:.1f} in the last")
            trial.measured[f"MiB more of {name}"] = after - before

    def report_memory(self, trial: Trial, course: Course) -> None:
        now = ", ".join(f"{name} {values[-1]:.1f}" for name, values in course.values.items())
        say(f"{trial.name}: {len(trial.accepted)} jobs; MiB: {now}")

    def client(self, trial: Trial, number: int) -> None:
        rng = Random(f"{trial.name} {number}")
        acts = (self.read, self.leave, self.resume, self.stop, self.abandon, self.complete)
        with closing(Http(f"http://{HOST}:{trial.service.port}")) as service:
            while time.monotonic() < self.until:
                try:
                    rng.choice(acts)(trial, service, rng)
                except (ClientError, HTTPException, OSError) as error:
                    trial.problems.append(repr(error))
                time.sleep(rng.uniform(0.0, PAUSE_S))

    # What a client does

    def read(self, trial: Trial, service: Http, rng: Random) -> None:
        job_id = self.joined(trial, rng)
        self.is_text(trial, job_id, hear(service, job_id)[0])

    def leave(self, trial: Trial, service: Http, rng: Random) -> None:
        hear(service, self.joined(trial, rng), at_most=rng.randint(1, EVENTS))

    def resume(self, trial: Trial, service: Http, rng: Random) -> None:
        job_id = self.joined(trial, rng)
        text, last_id = hear(service, job_id, at_most=rng.randint(1, EVENTS))
        self.is_text(trial, job_id, text + hear(service, job_id, after=last_id)[0])

    def stop(self, trial: Trial, service: Http, rng: Random) -> None:
        job_id = self.joined(trial, rng, "cancelled", "succeeded")
        hear(service, job_id, at_most=rng.randint(1, EVENTS))
        service.cancel(str(job_id))
        hear(service, job_id)

    def abandon(self, trial: Trial, _: Http, rng: Random) -> None:
        job_id = self.joined(trial, rng, "cancelled", "succeeded")
        with closing(HTTPConnection(HOST, trial.service.port, timeout=LIMIT_S)) as connection:
            connection.request("GET", f"/v1/jobs/{job_id}/stream?on_disconnect=cancel")
            next(line for line in connection.getresponse() if line.startswith(b"event: "))

    def complete(self, trial: Trial, _: Http, rng: Random) -> None:
        """As clients of OpenAI ask, whose job has no id before it is stored."""
        prompt, most = self.draw(rng)
        body = {"model": "greedy", "prompt": prompt, "max_tokens": most, "temperature": 0, "stream": True}
        body |= greedy.find_grammar(prompt)
        with closing(HTTPConnection(HOST, trial.service.port, timeout=LIMIT_S)) as connection:
            connection.request("POST", "/openai/v1/completions", json.dumps(body), JSON)
            text = text_of(connection.getresponse().read())
        trial.expect(text == self.reference.text(prompt, most), f"{prompt!r} is completed with {text!r:.200}")

    def joined(self, trial: Trial, rng: Random, *outcomes: str) -> UUID:
        with self.lock:
            return self.submit_prompt(trial, *self.draw(rng), *outcomes)

    def is_text(self, trial: Trial, job_id: UUID, text: str) -> None:
        trial.expect(text == self.expected(trial, job_id), f"the stream of {job_id} is not its text: {text!r:.200}")


def hear(service: Http, job_id: UUID, *, after: str = "", at_most: int = sys.maxsize) -> tuple[str, str]:
    """The text of so many events of a stream, and the id of the last."""
    with closing(service.stream(str(job_id), after=after)) as stream:  # type: ignore[type-var]
        events = list(itertools.islice(filter(None, stream), at_most))
    return "".join(event.text for event in events), next((event.id for event in reversed(events) if event.id), after)
