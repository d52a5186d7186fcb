"""The whole service in a folder of its own: broker, web server and workers as child processes, for end-to-end tests.

    with Stack(models=ECHO) as stack:
        job = stack.post("/v1/jobs", {"model": "echo", "inputs": "a"}).json
        stack.finished(job["id"])

Each part can be stopped, killed and started again alone. Nothing is left behind, also when the tests are killed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db.models import QuerySet

from api.models import ApiKey
from inference.broker.address import find_temporary_folder
from inference.broker.embedded import is_answering
from inference.models import TERMINAL, Job, Worker
from inference.status.workers import SERVING
from tests import databases, echo
from tests.conditions import PATIENCE_S, eventually
from tests.ports import HOST, free_port
from tools.launcher import programs
from tools.launcher.reaper import Reaper
from tools.launcher.supervisor import Child, Program

LOG_LINES_SHOWN = 200
ECHO = """
[echo]
engine = "tests.echo:EchoEngine"
max_batch_size = 16
time_limit_s = 180
"""


def name_gpus(folder: Path, count: int) -> dict[str, str]:
    """Return an environment in which a worker is given GPUs that are not there, numbered from 0.

    `folder` is for what says that torch is no build for CPUs alone.
    """
    metadata = folder / "torch-2.13.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n")
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(count))), "PYTHONPATH": str(folder)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the web server answered."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def admin_session(url: str, name: str, password: str) -> Callable[[str], str]:
    """Log in as a browser does; returns what reads a page."""
    cookies = CookieJar()
    browser = build_opener(HTTPCookieProcessor(cookies))
    browser.open(f"{url}/admin/login/").close()
    token = next(cookie.value for cookie in cookies if cookie.name == "csrftoken")
    form = {"username": name, "password": password, "csrfmiddlewaretoken": token}
    browser.open(f"{url}/admin/login/?next=/admin/", urlencode(form).encode()).close()
    return lambda path: browser.open(url + path).read().decode()


class Stack:
    def __init__(
        self,
        *,
        models: str = ECHO,
        workers: int = 1,
        replicas: int = 2,
        worker_options: Iterable[str] = (),
        devices: str = "cpu",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`models` is the text of models.toml, `replicas` those of each worker. Without a DATABASE_URL of its own in
        `environment` it has a database of the kind that the tests run on."""
        self.worker_names = [f"worker{number}" for number in range(1, workers + 1)]
        self.worker_options = ("-c", str(replicas), *worker_options)
        self.devices = devices
        self.folder = Path(tempfile.mkdtemp(prefix="stack-", dir=find_temporary_folder()))
        self.models_file = self.folder / "models.toml"
        self.models_file.write_text(models)
        self.port = free_port()
        self.socket = self.folder / "broker.sock"
        self.environment = {
            "DATA_DIR": str(self.folder),
            "DEVELOPMENT": "1",
            "MODELS_FILE": str(self.models_file),
            "REDIS_URL": f"unix://{self.socket}",
            "BROKER_URL": "",
            "OMP_NUM_THREADS": "1",
            **(environment or {}),
        }
        self.log: list[str] = []
        self.children: dict[str, Child] = {}
        self.reaper = Reaper()

    # Life

    def __enter__(self) -> Self:
        try:
            self.make_database()
            self.start_broker()
            self.start_web()
            for name in self.worker_names:
                self.start_worker(name)
            self.ready()
        except BaseException:
            self.show_log()
            self.close()
            raise
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error:
            self.show_log()
        self.close()

    def close(self) -> None:
        for child in self.children.values():
            child.kill()
        self.reaper.close()
        databases.drop(self.alias)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_broker(self) -> Child:
        child = self.start(programs.make_broker(data=self.folder / "broker", socket=self.socket))
        eventually(lambda: is_answering(self.socket) or child.exit_code is not None, "the broker answers")
        if child.exit_code is not None:
            raise AssertionError(f"the broker ended with {child.exit_code}")
        return child

    def start_web(self) -> Child:
        return self.start(programs.make_web_server(host=HOST, port=self.port))

    def start_worker(self, name: str = "worker1", **environment: str) -> Child:
        program = programs.make_worker(name=name, devices=self.devices, options=self.worker_options)
        return self.start(replace(program, environment=environment))

    def start(self, program: Program) -> Child:
        """Start a program under its name, in place of one that has ended."""
        environment = {**self.environment, **program.environment}
        child = Child(replace(program, environment=environment), self.write_log, self.reaper)
        self.children[program.name] = child
        return child

    def start_again(self) -> None:
        """Start what this stack began with and has ended since: a test that failed in between leaves it so."""
        names = ("broker", "web", *self.worker_names)
        ended = [self.children[name] for name in names if self.children[name].exit_code is not None]
        for child in ended:
            self.start(child.program)
        if ended:
            self.ready()

    def ready(self) -> None:
        """Wait until the web server answers, and each running worker has loaded its models."""
        eventually(self.answers, "the web server answers")
        eventually(self.workers_are_ready, "the workers are ready")

    def workers_are_ready(self) -> bool:
        """Return whether each running worker has loaded its models."""
        running = (child for name, child in self.children.items() if name.startswith("worker"))
        pids = {child.pid for child in running if child.exit_code is None}
        return self.workers.filter(pid__in=pids, state__in=SERVING).count() == len(pids)

    def answers(self) -> bool:
        for name, child in self.children.items():
            if child.exit_code is not None:
                raise AssertionError(f"{name} ended with {child.exit_code}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.get("/healthz").status == 200
        return False

    def write_log(self, name: str, line: str) -> None:
        self.log.append(f"{name:<8}| {line}")

    def show_log(self) -> None:
        sys.stderr.write("\n".join(["", *self.log[-LOG_LINES_SHOWN:], ""]))

    # HTTP

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> Answer:
        """`body` is sent as JSON, or as it is when it is bytes."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        default = {"Content-Type": "application/json"} if data is not None else {}
        with contextlib.closing(http.client.HTTPConnection(HOST, self.port, timeout=timeout_s)) as connection:
            connection.request(method, path, data, {**default, **(headers or {})})
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(status=answer.status, headers=names, body=answer.read())

    def get(self, path: str, **options: Any) -> Answer:
        return self.request("GET", path, **options)

    def post(self, path: str, body: Any, **options: Any) -> Answer:
        return self.request("POST", path, body, **options)

    def submit(self, inputs: Any, *, model: str = "echo", **fields: Any) -> UUID:
        """The id of a job that the service accepted."""
        answer = self.post("/v1/jobs", {"model": model, "inputs": inputs, **fields})
        if answer.status != 202:
            raise AssertionError(f"not accepted: {answer.status} {answer.body!r:.500}")
        return UUID(answer.json["id"])

    def submit_together(self, inputs: Iterable[Any], *, model: str = "echo", **fields: Any) -> list[UUID]:
        """Queue jobs at one moment, and return their ids in the order of the inputs."""
        answer = self.post("/v1/jobs/bulk", {"model": model, "inputs": list(inputs), **fields})
        if answer.status != 202:
            raise AssertionError(f"not accepted: {answer.status} {answer.body!r:.500}")
        return [UUID(job["id"]) for job in answer.json["jobs"]]

    def call(self, inputs: Any, *, model: str = "echo", **fields: Any) -> Answer:
        """Return the answer of a blocking call, which waits patiently."""
        path = f"/v1/models/{model}?timeout={PATIENCE_S:g}"
        return self.post(path, {"inputs": inputs, **fields}, timeout_s=2 * PATIENCE_S)

    # Gates

    def hold(self, name: str = echo.HELD) -> None:
        """Have what is told to wait for this file do so from now on: see `tests.echo` and `tests.words`."""
        (self.folder / name).touch()

    def release(self, name: str = echo.HELD) -> None:
        (self.folder / name).unlink(missing_ok=True)

    # The database, read and written beside the service

    def issue_key(self, username: str) -> str:
        """A new API key of this user, who is made where there is none."""
        user, _ = get_user_model().objects.using(self.alias).get_or_create(username=username)
        return ApiKey.objects.db_manager(self.alias).issue_key(owner=user)[1]

    @property
    def alias(self) -> str:
        """Of no other stack, also of those before: a port is used again."""
        return self.folder.name

    @property
    def jobs(self) -> QuerySet[Job]:
        return Job.objects.using(self.alias)

    @property
    def workers(self) -> QuerySet[Worker]:
        return Worker.objects.using(self.alias)

    def finished(self, *ids: UUID) -> list[Job]:
        """The jobs, in the order of `ids`, once all are finished."""

        left = self.jobs.filter(pk__in=ids).exclude(status__in=TERMINAL)
        eventually(lambda: not left.exists(), f"{len(ids)} jobs finish")
        found = self.jobs.in_bulk(ids)
        return [found[job_id] for job_id in ids]

    def replica_pids(self, name: str = "worker1") -> list[int]:
        """The pool children of a worker."""
        row = self.workers.get(pid=self.children[name].pid)
        return [replica.pid or 0 for _, replica in sorted(row.replicas.items())]

    def make_database(self) -> None:
        if url := self.environment.get("DATABASE_URL"):
            databases.attach(self.alias, url)
        else:
            self.environment["DATABASE_URL"] = databases.create(self.alias, self.folder)
