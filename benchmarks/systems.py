"""The systems that are compared: how each is started, and where it answers."""

from __future__ import annotations

import contextlib
import copy
import http.client
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import processes, service
from benchmarks.load import Target
from benchmarks.pipeline import Setting
from benchmarks.processes import Command, Programs
from benchmarks.workloads import FOLDER, Workload, is_right
from inference.broker import embedded

ROOT = Path(__file__).parent.parent
START_LIMIT_S = 180.0
MAX_BATCH_SIZE = 32
PYTHON = (sys.executable, "-m")
WEB = (*PYTHON, "gunicorn", "--log-level", "warning", "--keep-alive", "60", "--bind")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """How the cores are used."""

    workers: int  # processes that hold a model
    threads: int  # of each

    def __str__(self) -> str:
        return f"{self.workers} x {self.threads}"


def variants() -> tuple[Variant, ...]:
    """A worker a core, and one worker with all cores; the first is what `--quick` takes."""
    cores = len(os.sched_getaffinity(0))
    return tuple(dict.fromkeys((Variant(workers=cores, threads=1), Variant(workers=1, threads=cores))))


class System:
    """A peer is told everything through its environment; `service.Service` differs."""

    label: str
    is_ours = False
    batches = True
    only_if_named = False  # with --only
    precision = "float32"

    @property
    def of_labels(self) -> bool:
        """Whether answers are compared by their labels alone: the scores are of another precision."""
        return self.precision != "float32"

    @contextlib.contextmanager
    def programs(self, setting: Setting, workload: Workload, log: Path) -> Iterator[Programs]:
        with processes.running(self.commands(setting), setting.to_environment(), log, ROOT) as programs:
            yield programs

    def commands(self, setting: Setting) -> Sequence[Command]:
        raise NotImplementedError

    def path(self, workload: Workload) -> str:
        return "/"

    def require_as_named(self, port: int, workload: Workload) -> None:
        """Raises `StartFailed` where it computes in another way than its name says."""


class Uvicorn(System):
    def __init__(self, label: str, module: str, batches: bool) -> None:
        self.label, self.module, self.batches = label, module, batches

    def commands(self, setting: Setting) -> Sequence[Command]:
        app = f"benchmarks.peers.{self.module}:app"
        options = ("--workers", str(setting.workers), "--port", str(setting.port), "--log-level", "warning")
        return [(*PYTHON, "uvicorn", *options, app)]


class LitServe(System):
    label = "LitServe"

    def commands(self, setting: Setting) -> Sequence[Command]:
        return [(*PYTHON, "benchmarks.peers.litserve")]

    def path(self, workload: Workload) -> str:
        return "/predict"


class Mosec(System):
    label = "mosec"

    def commands(self, setting: Setting) -> Sequence[Command]:
        options = (
            "--address",
            "127.0.0.1",
            "--port",
            str(setting.port),
            "--timeout",
            "60000",
            "--log-level",
            "warning",
        )
        return [(*PYTHON, "benchmarks.peers.mosec", *options)]

    def path(self, workload: Workload) -> str:
        return "/inference"


class ServiceStreamer(System):
    label = "service-streamer (Redis)"

    def commands(self, setting: Setting) -> Sequence[Command]:
        web = (*WEB, f"127.0.0.1:{setting.port}", "--worker-class", "gevent")
        return [
            broker(setting),
            (*PYTHON, "benchmarks.peers.service_streamer"),
            (*web, "benchmarks.peers.service_streamer:web('redis')"),
        ]


class InOneServer(System):
    """The rows of service-streamer's own comparison that need no broker: a threaded Flask server, which has the model
    or starts the workers."""

    only_if_named = True

    def __init__(self, label: str, way: str, batches: bool) -> None:
        self.label, self.way, self.batches = label, way, batches

    def commands(self, setting: Setting) -> Sequence[Command]:
        web = (*WEB, f"127.0.0.1:{setting.port}", "--worker-class", "gthread", "--threads", "160")
        return [(*web, f"benchmarks.peers.service_streamer:web('{self.way}')")]


class CeleryBatches(System):
    label = "celery-batches"

    def commands(self, setting: Setting) -> Sequence[Command]:
        module = "benchmarks.peers.celery_batches"
        options = ("-c", str(setting.workers), "--loglevel", "warning", "--without-mingle", "--without-gossip")
        web = (*WEB, f"127.0.0.1:{setting.port}", "--worker-class", "gthread", "--threads", "160")
        return [
            broker(setting),
            (*PYTHON, "celery", "-A", module, "worker", *options),
            (*web, f"{module}:web"),
        ]


class Service(System):
    is_ours = True

    def __init__(
        self, max_batch_size: int = MAX_BATCH_SIZE, backend: str = "torch", precision: str = "float32"
    ) -> None:
        self.max_batch_size, self.batches = max_batch_size, max_batch_size > 1
        self.backend, self.precision = backend, precision
        self.only_if_named = backend != "torch" or self.of_labels
        self.label = "this service"
        if self.only_if_named:
            self.label += f", {precision}" if backend == "torch" else f", {backend} {precision}"
        if not self.batches:
            self.label += ", max_batch_size = 1"

    @contextlib.contextmanager
    def programs(self, setting: Setting, workload: Workload, log: Path) -> Iterator[Programs]:
        with service.running(
            workload.name, setting, self.max_batch_size, log, backend=self.backend, precision=self.precision
        ) as programs:
            yield programs

    def path(self, workload: Workload) -> str:
        return f"/v1/models/{workload.name}?timeout=60"

    def require_as_named(self, port: int, workload: Workload) -> None:
        if self.backend == "torch":
            return
        deadline, note = time.monotonic() + START_LIMIT_S, ""
        while not note and time.monotonic() < deadline:  # a heartbeat brings it
            time.sleep(0.1)
            note = json.loads(fetch(port, f"/v1/models/{workload.name}")[1])["served"]["note"] or ""
        if not note.startswith(f"{self.backend} computes it in {self.precision}:"):
            raise processes.StartFailed(note or "Nothing says how it is computed.")


PEERS: dict[str, System] = {
    "unbatched": Uvicorn("one at a time (Hugging Face's server)", "unbatched", batches=False),
    "starlette": Uvicorn("Hugging Face's server, batching", "starlette", batches=True),
    "litserve": LitServe(),
    "mosec": Mosec(),
    "service-streamer": ServiceStreamer(),
    "celery-batches": CeleryBatches(),
}


def in_bfloat16(system: System) -> System:
    """A peer whose pipeline computes so."""
    other = copy.copy(system)
    other.precision, other.label, other.only_if_named = "bfloat16", f"{system.label}, bfloat16", True
    return other


SYSTEMS: dict[str, System] = {
    "service": Service(),
    "service-1": Service(1),
    **PEERS,
    "streamer-naive": InOneServer("service-streamer's naive server", "naive", batches=False),
    "streamer-threads": InOneServer("service-streamer (threads)", "threads", batches=True),
    "streamer-processes": InOneServer("service-streamer (processes)", "processes", batches=True),
    **{
        f"openvino-{precision}{suffix}": Service(size, "openvino", precision)
        for precision in ("float32", "bfloat16", "int8")
        for suffix, size in (("", MAX_BATCH_SIZE), ("-1", 1))
    },
    "bfloat16": Service(precision="bfloat16"),
    "bfloat16-1": Service(1, precision="bfloat16"),
    **{f"{name}-bfloat16": in_bfloat16(peer) for name, peer in PEERS.items()},
}


def broker(setting: Setting) -> Command:
    options = ("--bind", "127.0.0.1", "--port", str(setting.broker_port), "--save", "", "--loglevel", "warning")
    return (str(embedded.find_server_binary()), *options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    target: Target
    data: Path | None  # where this service keeps its rows; None for a peer


@contextlib.contextmanager
def serving(name: str, workload: Workload, variant: Variant) -> Iterator[Serving]:
    """A started and idle system, until the end of the block."""
    system = SYSTEMS[name]
    setting = Setting(
        task=workload.task,
        folder=str(workload.model_folder),
        workers=variant.workers,
        threads=variant.threads,
        max_batch_size=MAX_BATCH_SIZE,
        port=processes.free_port(),
        broker_port=processes.free_port(),
        precision=system.precision,
    )
    answers, texts = workload.answers(), workload.texts()
    requests = [request(setting.port, system.path(workload), {"inputs": text}) for text in texts]
    with system.programs(setting, workload, FOLDER / "logs" / f"{name}-{workload.name}.log") as programs:
        target = Target(
            port=setting.port,
            requests=requests,
            is_right=lambda index, body: is_right(body, answers[index], of_label=system.of_labels),
        )
        wait_until_right(programs, target, {"inputs": texts[0]}, system.path(workload))
        system.require_as_named(setting.port, workload)
        processes.settle()
        yield Serving(target=target, data=programs.data)


def request(port: int, path: str, content: Mapping[str, Any]) -> bytes:
    body = json.dumps(content).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def wait_until_right(programs: Programs, target: Target, content: Mapping[str, Any], path: str) -> None:
    """`content`: of the target's first request."""
    deadline = time.monotonic() + START_LIMIT_S
    body = b""
    while time.monotonic() < deadline:
        programs.require_alive()
        status, body = fetch(target.port, path, content)
        if status == 200 and target.is_right(0, body):
            return
        time.sleep(0.1)
    raise programs.failure(f"No right answer within {START_LIMIT_S:.0f} s, but {body[:300]!r}")


def fetch(port: int, path: str, content: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
    """Status and body of a POST, or a GET without content; status 0 when nobody answers yet."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        if content is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(content), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        return 0, repr(error).encode()
    finally:
        connection.close()
