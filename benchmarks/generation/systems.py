"""The servers of generated text that are compared: how each is started, and what it is asked."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import processes, service
from benchmarks.generation.answers import text_of
from benchmarks.generation.dataset import MODEL, NAME, TASK, Example
from benchmarks.load import Target
from benchmarks.pipeline import Setting
from benchmarks.processes import Programs
from benchmarks.systems import MAX_BATCH_SIZE, ROOT, Variant, request, wait_until_right
from benchmarks.workloads import FOLDER

# A parameter that may ask for another way to generate: models that allow it answer in batches that nobody joins.
STATIC = f'[{NAME}.parameters]\nnum_beams = {{ type = "integer", min = 1, max = 1 }}'


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Its model is told by the environment, and it is asked as OpenAI's servers are, unless a class differs."""

    label: str
    variant: Variant
    path: str = "/v1/completions"
    command: Sequence[str] = ()
    most_clients: int = 64  # beyond which only its queue is longer

    @contextlib.contextmanager
    def programs(self, setting: Setting, log: str) -> Iterator[Programs]:
        command = [part.format(port=setting.port, model=MODEL, workers=setting.workers) for part in self.command]
        path = FOLDER / "logs" / f"{NAME}-{log}.log"
        with processes.running([command], setting.to_environment(), path, ROOT) as programs:
            yield programs

    def body(self, one: Example) -> dict[str, Any]:
        return {
            "model": str(MODEL), "prompt": one.prompt, "max_tokens": one.limit, "temperature": 0, "stream": True,
        }  # fmt: skip

    def is_right(self, found: str, expected: str) -> bool:
        return found == expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Service(System):
    path: str = f"/v1/models/{NAME}"
    more: str = ""  # lines of the model's entry

    @contextlib.contextmanager
    def programs(self, setting: Setting, log: str) -> Iterator[Programs]:
        path = FOLDER / "logs" / f"{NAME}-{log}.log"
        with service.running(NAME, setting, setting.max_batch_size, path, self.more) as programs:
            yield programs

    def body(self, one: Example) -> dict[str, Any]:
        parameters = {"max_new_tokens": one.limit, "do_sample": False, "return_full_text": False}
        return {"inputs": one.prompt, "parameters": parameters, "stream": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Documented(System):
    """Hugging Face's web server, over the pipeline. Its answers come whole."""

    path: str = "/"

    def body(self, one: Example) -> dict[str, Any]:
        return {"inputs": {"prompt": one.prompt, "max_new_tokens": one.limit}}

    def is_right(self, found: str, expected: str) -> bool:
        """A batch is as long as its longest answer; that the others go on is not held against it."""
        return found.startswith(expected)


def uvicorn(module: str) -> Sequence[str]:
    options = ("--workers", "{workers}", "--port", "{port}", "--log-level", "warning")
    return (sys.executable, "-m", "uvicorn", *options, f"benchmarks.peers.{module}:app")


CORES = len(os.sched_getaffinity(0))
ONE, EACH = Variant(workers=1, threads=CORES), Variant(workers=CORES, threads=1)
SERVE = (
    str(ROOT / "benchmarks" / ".venv" / "bin" / "transformers"), "serve", "{model}", "--continuous-batching",
    "--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1", "--port", "{port}",
    "--cb-num-blocks", "128", "--cb-max-batch-tokens", "512",
)  # fmt: skip
SYSTEMS: dict[str, System] = {
    "service": Service(label="this service", variant=EACH),
    "one-replica": Service(label="this service, one replica", variant=ONE),
    "static": Service(label="this service, static batches", variant=EACH, more=STATIC),
    "serve": System(label="transformers serve, continuous batching", variant=ONE, command=SERVE),
    "starlette": Documented(label="Hugging Face's server, batching", variant=ONE, command=uvicorn("starlette")),
    "unbatched": Documented(
        label="one at a time (Hugging Face's server)", variant=ONE, command=uvicorn("unbatched"), most_clients=16
    ),
}


@contextlib.contextmanager
def serving(name: str, pool: Sequence[Example]) -> Iterator[Target]:
    """A started and idle system, until the end of the block."""
    system = SYSTEMS[name]
    setting = Setting(
        task=TASK,
        folder=str(MODEL),
        workers=system.variant.workers,
        threads=system.variant.threads,
        max_batch_size=MAX_BATCH_SIZE,
        port=processes.free_port(),
        broker_port=processes.free_port(),
    )
    target = Target(
        port=setting.port,
        requests=[request(setting.port, system.path, system.body(one)) for one in pool],
        is_right=lambda index, body: system.is_right(text_of(body), pool[index].text),
    )
    with system.programs(setting, name) as programs:
        wait_until_right(programs, target, system.body(pool[0]), system.path)
        processes.settle()
        yield target
