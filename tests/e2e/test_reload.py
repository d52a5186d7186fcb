"""Models come and go: models.toml is edited while clients ask, and nothing fails."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from django.conf import settings

from inference.management.commands.reload import FOLLOWED
from inference.models import Status
from tests import tiny_models
from tests.conditions import PATIENCE_S, eventually
from tests.e2e.test_replicas import QUICK, ReplicaCase
from tests.stack import Stack

PAUSE_S = 0.2  # of a client between two requests: without one, they take the cores that load the models
ENTRY = """
[{name}]
engine = "tests.faults.engines:Revised"
revision = "{revision}"
max_batch_size = 4
time_limit_s = 180
options = {{ fixed_ms = 5 }}
"""


def entries(**revisions: str) -> str:
    return "".join(ENTRY.format(name=name, revision=revision) for name, revision in revisions.items())


def revision_of(output: Any) -> str:
    """The one that an answer of `Revised` names, or a label of a classification."""
    if isinstance(output, dict):
        return str(output["revision"])
    while isinstance(output, list):
        output = output[0]
    return str(output["label"]).partition("-")[0]


class Client(threading.Thread):
    """Asks again and again, a moment after its last answer: blocking, or with a job that it polls for."""

    def __init__(self, stack: Stack, *, model: str, polls: bool) -> None:
        super().__init__(daemon=True)
        self.stack, self.model, self.polls = stack, model, polls
        self.revisions: list[str] = []  # of its answers
        self.failures: list[str] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        for number in itertools.count():
            if self.stopping.wait(PAUSE_S):
                return
            try:
                self.revisions.append(revision_of(self.request_output(f"text {number}")))
            except Exception as error:
                self.failures.append(repr(error))

    def request_output(self, text: str) -> Any:
        if not self.polls:
            answer = self.stack.call(text, model=self.model)
            if answer.status != 200:
                raise AssertionError(f"{answer.status} {answer.body!r}")
            return answer.json
        job = self.stack.submit(text, model=self.model)
        ended = eventually(lambda: self.ended(job), "it ends", every_s=PAUSE_S)
        if ended["status"] != Status.SUCCEEDED:
            raise AssertionError(f"{ended}")
        return ended["output"]

    def ended(self, job: Any) -> Any:
        found = self.stack.get(f"/v1/jobs/{job}").json
        return found if found["status"] not in (Status.QUEUED, Status.RUNNING) else None


class ReloadCase(ReplicaCase):
    log_start = 0  # of this test

    def begin(self, models: str, **options: Any) -> None:
        self.stack = Stack(models=models, environment=QUICK, **options)
        self.enterContext(self.stack)

    def write(self, models: str) -> None:
        """At once, as an editor that renames."""
        new = self.file("models.new")
        new.write_text(models)
        new.replace(self.stack.models_file)

    def runs(self, name: str = "worker1") -> dict[str, list[tuple[str, str]]]:
        """By model: the revisions that the worker's row shows, and their states."""
        found: dict[str, list[tuple[str, str]]] = {}
        for entry in self.row(name).catalog.models:
            found.setdefault(entry.name, []).append((entry.revision, entry.state))
        return found

    def wait_for(self, *, name: str = "worker1", **models: str) -> None:
        """Until the worker runs these revisions, and nothing else."""
        wanted = {model: [(revision, "ready")] for model, revision in models.items()}
        eventually(lambda: self.runs(name) == wanted, f"{name} runs {models}")

    @contextmanager
    def load(self, model: str = "echo", clients: int = 4, *, all_poll: bool = False) -> Iterator[list[Client]]:
        """None of them fails, and none gets an older answer after a newer one. Half of them poll, or all."""
        polling = [all_poll or bool(number % 2) for number in range(clients)]
        threads = [Client(self.stack, model=model, polls=polls) for polls in polling]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: all(thread.revisions for thread in threads), "all were answered")
            yield threads
            seen = [len(thread.revisions) for thread in threads]
            eventually(
                lambda: all(len(t.revisions) > before + 2 for t, before in zip(threads, seen, strict=True)),
                "all are answered again",
            )
        finally:
            for thread in threads:
                thread.stopping.set()
            for thread in threads:
                thread.join()
        self.assertEqual([failure for thread in threads for failure in thread.failures], [])
        for thread in threads:
            self.assertEqual(thread.revisions, sorted(thread.revisions))

    def command(self, *options: str) -> subprocess.CompletedProcess[str]:
        """`manage.py reload`, where the service runs."""
        return subprocess.run(
            [sys.executable, "manage.py", "reload", *options],
            env={**os.environ, **self.stack.environment},
            cwd=settings.BASE_DIR,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )

    def shown(self, model: str) -> list[tuple[str, str]]:
        """The revisions, or weights, and their states that clients see."""
        found = self.stack.get(f"/v1/models/{model}").json["served"]["entries"]
        return [(entry["revision"] or entry["model"], entry["state"]) for entry in found]

    def logged(self, part: str) -> bool:
        return any(part in line for line in self.stack.log[self.log_start :])


class SharedTests(ReloadCase):
    """Tests that share a worker of two replicas."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.stack = cls.enterClassContext(Stack(models=entries(echo="r1"), environment=QUICK, replicas=2))

    def begin_with(self, **revisions: str) -> None:
        """Whatever ran in the test before."""
        self.write(entries(**revisions))
        self.wait_for(**revisions)
        for model, revision in revisions.items():
            eventually(partial(self.is_known, model, revision), "the web process knows it")
        self.log_start = len(self.stack.log)

    def is_known(self, model: str, revision: str) -> bool:
        return bool(self.stack.get(f"/v1/models/{model}").json.get("revision") == revision)

    def test_a_revision_is_changed_under_load_and_answers_switch_once(self) -> None:
        self.begin_with(echo="r1")
        with self.load() as clients:
            children = self.stack.replica_pids()
            self.write(entries(echo="r2", added="r1"))
            done = self.command()
            self.assertEqual(self.stack.get("/v1/models/added").status, 200, "the web process knows it too")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("run as the file says, by 1 worker", done.stdout)
            self.assertEqual(self.runs(), {"echo": [("r2", "ready")], "added": [("r1", "ready")]})
        self.assertEqual({client.revisions[-1] for client in clients}, {"r2"})
        self.assertEqual((self.row().replicas_ready, self.stack.replica_pids()), (2, children))
        self.assertEqual(self.command().stdout.splitlines()[0], FOLLOWED)

    def test_one_that_becomes_lazy_and_then_is_changed_fails_no_request(self) -> None:
        self.begin_with(echo="r1")
        with self.load() as clients:
            for revision in ("r1", "r2"):
                self.write(entries(echo=revision) + 'load = "lazy"\n')
                done = self.command()
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                eventually(lambda: (revision, "ready") in self.runs()["echo"], "it is loaded")  # noqa: B023
        self.assertEqual({client.revisions[-1] for client in clients}, {"r2"})

    def test_limits_change_without_a_load(self) -> None:
        self.begin_with(echo="r1")
        with self.load(clients=2):
            self.file("held-r1").touch()  # a load would never end
            self.addCleanup(self.file("held-r1").unlink)
            self.write(entries(echo="r1").replace("max_batch_size = 4", "max_batch_size = 8"))
            eventually(lambda: self.logged("changed: echo") and self.logged("by its new entry"), "it is taken over")
            answer = self.stack.call(["text"] * 8)
            self.assertEqual(answer.status, 200, answer.body)

    def test_a_child_that_dies_during_the_load_of_the_new_one_loses_nothing(self) -> None:
        """All poll: a call that waits is refused while no child has the model, which some machines need long for."""
        self.begin_with(echo="r1")
        with self.load(all_poll=True) as clients:
            self.file("held-r2").touch()
            self.write(entries(echo="r2"))
            eventually(lambda: ("r2", "loading") in self.runs()["echo"], "it is loaded")
            for pid in self.stack.replica_pids():
                os.kill(pid, signal.SIGKILL)
            self.file("held-r2").unlink()
            self.wait_for(echo="r2")
        self.assertEqual({client.revisions[-1] for client in clients}, {"r2"})

    def test_one_that_ends_the_process_which_loads_it_leaves_the_old(self) -> None:
        self.begin_with(echo="r1")
        self.file("deadly-r2").touch()
        with self.load() as clients:
            self.write(entries(echo="r2"))
            eventually(lambda: ("r2", "failed") in self.runs()["echo"], "it says so")
            done = self.command()
            self.assertEqual(done.returncode, 1)
            self.assertIn("could not load echo (r2): a process ended while it loaded this model.", done.stderr)
            self.assertIn(("r1", "ready"), self.runs()["echo"])
            self.file("deadly-r2").unlink()
            self.wait_for(echo="r2")
        self.assertEqual({client.revisions[-1] for client in clients}, {"r2"})

    def test_one_that_cannot_be_loaded_leaves_the_old_until_it_can(self) -> None:
        self.begin_with(echo="r1")
        self.file("broken-r2").touch()
        with self.load(clients=2) as clients:
            self.write(entries(echo="r2"))
            eventually(lambda: ("r2", "failed") in self.runs()["echo"], "it says so")
            eventually(lambda: "the one before goes on: could not be loaded" in self.row().error, "it says why")
            eventually(lambda: self.stack.get("/readyz").status == 200, "it is ready")
            eventually(lambda: self.is_known("echo", "r2"), "the web process knows it")
            eventually(lambda: self.shown("echo") == [("r1", "ready"), ("r2", "failed")], "it tells how it is")
            again = self.command()
            self.assertIn("worker1@", again.stderr)
            self.assertIn("could not load echo (r2): could not be loaded", again.stderr, "it has tried again")
            self.file("broken-r2").unlink()
            done = self.command()
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertNotIn("nothing changes", done.stdout)
            self.wait_for(echo="r2")
        self.assertEqual({client.revisions[-1] for client in clients}, {"r2"})

    def test_a_file_with_an_error_changes_nothing_and_says_why(self) -> None:
        self.begin_with(echo="r1")
        with self.load(clients=2):
            self.write(entries(echo="r2") + "max_batch_sise = 3\n")
            done = self.command()
            self.assertEqual(done.returncode, 1)
            self.assertIn("did you mean max_batch_size?", done.stderr)
            eventually(lambda: self.row().catalog.problem, "the worker's row says so")
            eventually(lambda: self.logged("Nothing changes before that is put right."), "the log says so")
            self.assertEqual(self.runs(), {"echo": [("r1", "ready")]})
            self.write(entries(echo="r2"))
            self.wait_for(echo="r2")

    def test_models_are_added_and_removed_under_load(self) -> None:
        self.begin_with(echo="r1", gone="r0")
        with self.load(clients=4):
            self.file("busy-r0").touch()
            slow = [self.stack.submit("x", model="gone") for _ in range(8)]
            self.write(entries(echo="r1", added="r1"))
            eventually(lambda: self.runs().get("gone") == [("r0", "draining")], "it is drained")
            eventually(lambda: self.stack.get("/v1/models/gone").status == 404, "it is unknown")
            self.file("busy-r0").unlink()
            self.assertEqual({job.status for job in self.stack.finished(*slow)}, {Status.SUCCEEDED})
            eventually(lambda: ("r1", "ready") in self.runs().get("added", []), "the other is loaded")
            eventually(lambda: self.is_known("added", "r1"), "the web process knows it")
            self.assertEqual(self.stack.call("x", model="added").json["revision"], "r1")
        self.wait_for(echo="r1", added="r1")
        eventually(lambda: self.logged("model=gone unloaded"), "the log says so")

    def test_sighup_has_a_worker_look_and_neither_it_nor_its_jobs_end(self) -> None:
        self.begin_with(echo="r1")
        with self.load(clients=2):
            for _ in range(3):
                self.stack.children["worker1"].process.send_signal(signal.SIGHUP)
            self.write(entries(echo="r2"))
            self.stack.children["worker1"].process.send_signal(signal.SIGHUP)
            self.wait_for(echo="r2")
        self.assertIsNone(self.stack.children["worker1"].exit_code)


class WorkersTests(ReloadCase):
    def test_two_workers_with_a_model_each(self) -> None:
        self.begin(entries(one="r1", two="r1"), workers=0)
        for number, model in ((1, "one"), (2, "two")):
            self.stack.worker_options = ("-c", "1", "--models", model)
            self.stack.start_worker(f"worker{number}")
        self.stack.ready()
        with self.load("one", clients=2) as ones, self.load("two", clients=2) as twos:
            self.write(entries(one="r1", two="r2"))
            self.wait_for(name="worker2", two="r2")
        self.assertEqual({client.revisions[-1] for client in ones}, {"r1"})
        self.assertEqual({client.revisions[-1] for client in twos}, {"r2"})
        self.assertEqual(self.runs("worker1"), {"one": [("r1", "ready")]})


class WeightsTests(ReloadCase):
    def test_weights_of_transformers_are_changed_under_load(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name in ("first", "second"):
            config = tiny_models.build("text-classification", folder / name) / "config.json"
            content = json.loads(config.read_text())
            content["id2label"] = {key: f"{name}-{label}" for key, label in content["id2label"].items()}
            content["label2id"] = {label: int(key) for key, label in content["id2label"].items()}
            config.write_text(json.dumps(content))
        entry = f'[labels]\ntask = "text-classification"\nmodel = "{folder}/first"\n'
        self.begin(entry, replicas=2)
        with self.load("labels", clients=2) as clients:
            self.write(entry.replace("/first", "/second"))
            eventually(lambda: self.shown("labels") == [(f"{folder}/second", "ready")], "it is taken over")
        self.assertEqual({client.revisions[-1] for client in clients}, {"second"})
