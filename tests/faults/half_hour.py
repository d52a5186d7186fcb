"""Row 54: what is wrong for half an hour is said all the while, and nothing else is: by `manage.py status`, the alerts,
the admin's first page and `/readyz` alike."""

from __future__ import annotations

import contextlib
import functools
import html
import itertools
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

from django.contrib.auth import get_user_model

from tests.faults.backends import SQLITE
from tests.faults.fault import Fault
from tests.faults.trial import Trial
from tests.ports import HOST
from tests.stack import ECHO, admin_session
from tools.launcher.supervisor import Child, Program

HALF_HOUR_S = 1800.0
QUICK_S = 60.0  # when it is asked for by name in a quick run
EVERY_S = 10.0
NAMED_S = 60.0
GONE_S = 400.0  # after it was mended: failures and refusals are said for five minutes
PASSWORD = "a password for tests"
STATUS = Program(name="status", command=(sys.executable, "manage.py", "status", "--json", "--watch", "2"))
FAILING = {"always": 1.0, "mostly": 0.6, "partly": 0.25}  # models, and which share of their jobs fails
MODELS = ECHO + "".join(f'\n[{name}]\nengine = "tests.echo:EchoEngine"\n' for name in FAILING)
WITH_OTHERS = f"""{MODELS}
[full]
engine = "tests.echo:EchoEngine"
max_batch_size = 1
max_queued = 50
options = {{ fixed_ms = 1000 }}

[broken]
engine = "tests.faults.engines:GatedEcho"
"""
Load = contextlib.AbstractContextManager[None]


class HalfHour(Fault):
    """Clients go on with their jobs, and every ten seconds somebody looks."""

    row, ci, full, chunk = "54", 0, 1, 1
    takes_s = QUICK_S
    databases = (SQLITE,)
    options: ClassVar[dict[str, Any]] = {"models": ECHO, "workers": 2, "replicas": 1}
    SAID: ClassVar[tuple[tuple[str, str], ...]]  # codes, and patterns of their words
    READY: ClassVar[int]  # the status of /readyz meanwhile

    def trial(self, trial: Trial) -> None:
        self.said: list[dict[str, str]] | None = None
        status = Child(replace(STATUS, environment=trial.service.environment), self.take, trial.service.reaper)
        trial.service.children["status"] = status
        get_user_model().objects.db_manager(trial.service.alias).create_superuser("operator", password=PASSWORD)
        self.page = admin_session(f"http://{HOST}:{trial.service.port}", "operator", PASSWORD)
        trial.until(lambda: self.said == [], "all is well at first")
        self.is_mended = False
        with contextlib.ExitStack() as loads:
            with self.cause(trial):
                for load in self.loads(trial):
                    loads.enter_context(load)
                self.look_on(trial)
            self.is_mended = True
            trial.until(lambda: self.said == [], "all is well once it is mended", GONE_S)
        trial.expect(self.said == [], f"still said: {self.said}")
        trial.until(lambda: trial.service.get("/readyz").status == 200, "the service is ready")
        status.stop()

    def take(self, name: str, line: str) -> None:
        """Read a line of the command."""
        if line.startswith("{"):
            self.said = json.loads(line)["attention"]

    def look_on(self, trial: Trial) -> None:
        began_at, lasts_s = time.monotonic(), QUICK_S if trial.quick else HALF_HOUR_S
        trial.until(lambda: all(map(self.is_said, self.SAID)), "all of it is said", NAMED_S)
        while (after_s := time.monotonic() - began_at) < lasts_s:
            self.look(trial, f"after {after_s:.0f} s")
            time.sleep(EVERY_S)

    def is_said(self, expected: tuple[str, str]) -> bool:
        code, words = expected
        return any(item["code"] == code and re.search(words, item["text"]) for item in self.said or ())

    def look(self, trial: Trial, when: str) -> None:
        service, codes = trial.service, {code for code, _ in self.SAID}
        page = html.unescape(self.page("/admin/"))
        for code, words in self.SAID:
            trial.expect(self.is_said((code, words)), f"{when}: no {code} says {words!r}: {self.said}")
            trial.expect(re.search(words, page), f"{when}: the admin's first page does not say {words!r}")
        others = [item for item in self.said or () if item["code"] not in codes]
        trial.expect(not others, f"{when}: what is not so is said: {others}")
        metrics = service.get("/metrics").body.decode()
        alerts = set(re.findall(r'^inference_attention\{code="(\w+)"\} [1-9]', metrics, re.MULTILINE))
        trial.expect(alerts == codes, f"{when}: the alerts are {sorted(alerts)}")
        ready = service.get("/readyz")
        trial.expect(ready.status == self.READY, f"{when}: /readyz is {ready.status}: {ready.body!r}")

    @contextlib.contextmanager
    def cause(self, trial: Trial) -> Iterator[None]:
        """Break something, and mend it."""
        yield

    def loads(self, trial: Trial) -> Iterator[Load]:
        yield self.load(trial, trial.text)

    @contextlib.contextmanager
    def load(
        self, trial: Trial, make: Callable[[], Any], model: str = "echo", *, per_s: float = 1.0, refusal: int = 202
    ) -> Iterator[None]:
        """Each model has an owner's jobs: the queue that is full keeps no other from its turn."""
        trial.make = make
        with trial.load(per_s=per_s, model=model, headers=lambda: trial.service.key(model)) as load:
            yield
        accepted = trial.add(load, refusals=(refusal,)).accepted
        failing = (job for job, inputs in accepted.items() if isinstance(inputs, dict))
        trial.outcomes |= dict.fromkeys(failing, frozenset({"engine_error"}))


class Failures(HalfHour):
    title = "half an hour of models that fail, a queue that is full, a model that cannot be loaded"
    options: ClassVar[dict[str, Any]] = {"models": WITH_OTHERS, "workers": 1, "replicas": 2}
    SAID = (
        ("FailuresUnusual", r"of always failed with engine_error .* 100%"),
        ("FailuresUnusual", r"of mostly failed with engine_error .* [56]\d%"),
        ("FailuresUnusual", r"of partly failed with engine_error .* 2\d%"),
        ("QueueFull", r"too many jobs of full waited"),
        ("WorkerDegraded", r"does not serve all of its models: broken: "),
        ("ModelUnserved", r"No worker serves broken: "),
    )
    READY = 503

    @contextlib.contextmanager
    def cause(self, trial: Trial) -> Iterator[None]:
        file = trial.service.folder / "broken-broken"
        file.touch()
        trial.service.restart("worker1")
        trial.service.ready()
        with self.load(trial, trial.text, "full", per_s=4.0, refusal=503):
            yield
        file.unlink()

    def loads(self, trial: Trial) -> Iterator[Load]:
        yield from super().loads(trial)
        for model, share in FAILING.items():
            yield self.load(trial, functools.partial(self.make_input, trial, share, itertools.count(1)), model)

    def make_input(self, trial: Trial, share: float, numbers: Iterator[int]) -> Any:
        """Return an input. This share of them fails until it is mended, one after the other and not by chance."""
        number = next(numbers)
        fails = int(number * share) > int((number - 1) * share) and not self.is_mended
        return {"text": trial.text(), "fail": "exception"} if fails else trial.text()


class OneOfTwoKilled(HalfHour):
    title = "half an hour without one of two workers, which was killed"
    KILLED = "worker2"
    SAID: ClassVar[tuple[tuple[str, str], ...]] = (("WorkerGone", r"worker2@\S+ has been gone since .* served echo"),)
    READY = 200

    @contextlib.contextmanager
    def cause(self, trial: Trial) -> Iterator[None]:
        trial.service.children[self.KILLED].kill()
        yield
        trial.service.start_worker(self.KILLED)


class OnlyOneKilled(OneOfTwoKilled):
    KILLED = "worker1"
    title = "half an hour without the only worker, which was killed"
    options: ClassVar[dict[str, Any]] = {"models": ECHO, "workers": 1, "replicas": 1}
    SAID = (
        ("WorkerGone", r"worker1@\S+ has been gone since .* It served echo"),
        ("ModelUnserved", r"No worker serves echo: no living worker serves it"),
        ("QueueGrows", r"jobs of echo wait, the oldest for \d+ s"),
    )
    READY = 503

    def loads(self, trial: Trial) -> Iterator[Load]:
        yield self.load(trial, trial.text, refusal=429)  # More than a key's share of the queue wait after some minutes.


class OneOfTwoDrained(HalfHour):
    title = "half an hour in which one of two workers is drained"
    SAID = (("WorkerDrained", r"worker2@\S+ is drained and takes no jobs"),)
    READY = 200

    @contextlib.contextmanager
    def cause(self, trial: Trial) -> Iterator[None]:
        drained = trial.service.workers.filter(pk=trial.service.worker_row("worker2").pk)
        drained.update(is_to_rest=True)
        yield
        drained.update(is_to_rest=False)
