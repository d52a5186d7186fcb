"""Many replicas, many workers: which device each replica has, and which models each worker."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from inference.models import Status, Worker
from tests.conditions import eventually
from tests.e2e.case import StackCase
from tests.echo import Fail, misbehave
from tests.ports import HOST, free_port
from tests.stack import Stack, name_gpus
from tools.launcher import programs

DEVICES = ("cuda:0", "cuda:1", "cuda:2", "cuda:3")
WHERE = """
[where]
engine = "tests.e2e.test_many_workers:where"
input = { type = "string" }
max_batch_size = 1
time_limit_s = 180
"""
MANY = """
[many]
engine = "tests.e2e.test_many_workers:many"
input = { type = "string" }
time_limit_s = 180
"""

TORCH = """
# Says what torch says of one GPU that nothing was done on yet, and is imported in no time.

class cuda:
    fraction = None  # of its memory, that this process may take

    class get_device_properties:
        def __init__(self, index):
            self.total_memory = 8 << 30

    def set_per_process_memory_fraction(fraction, index):
        cuda.fraction = fraction

    def memory_allocated(index):
        return 0

    def is_initialized():
        return False

    def device_count():
        return 1
"""


def where(inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
    """A function in the place of a model that uses the device: which one this process sees, and which process it is."""
    wait()
    return [[os.environ["CUDA_VISIBLE_DEVICES"], os.getpid()] for _ in inputs]


def many(inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
    """Which part of its device's memory this process may take."""
    wait()
    return [sys.modules["torch"].cuda.fraction for _ in inputs]


def wait() -> None:
    """Wait while the test holds what runs: see `tests.echo`."""
    misbehave({"fail": Fail.HELD})


class DevicesTests(StackCase):
    """Devices of a machine with four GPUs, which no code here touches."""

    @classmethod
    def setUpClass(cls) -> None:
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        Path(folder, "torch.py").write_text(TORCH)
        environment = {"WORKER_HEARTBEAT_S": "0.5", **name_gpus(Path(folder), len(DEVICES))}
        options = ("--devices", ",".join(DEVICES))
        cls.stack = cls.enterClassContext(
            Stack(models=WHERE + MANY, replicas=8, worker_options=options, environment=environment)
        )

    def row(self) -> Worker:
        return self.stack.workers.get()

    def devices_by_pid(self) -> dict[int, str]:
        """What the row says of each replica."""
        return {replica.pid or 0: replica.device for replica in self.row().replicas.values()}

    def seen_by_pid(self) -> dict[int, str]:
        """Return what each process has seen itself: one that runs a batch waits until all do."""
        self.hold()
        ids = self.stack.submit_together(["where?"] * 32, model="where")
        self.all_are_busy()
        self.stack.release()
        return {pid: f"cuda:{device}" for device, pid in (job.output for job in self.stack.finished(*ids))}

    def test_eight_replicas_share_four_devices_two_each_and_a_killed_one_comes_back_to_its_own(self) -> None:
        eventually(lambda: self.row().replicas_ready == 8, "all have loaded it")
        before = self.devices_by_pid()
        self.assertEqual(Counter(before.values()), dict.fromkeys(DEVICES, 2))
        self.assertEqual(self.seen_by_pid(), before)
        killed = next(pid for pid, device in before.items() if device == "cuda:2")
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: killed not in self.devices_by_pid() and self.row().replicas_ready == 8, "it is back")
        after = self.devices_by_pid()
        self.assertEqual(Counter(after.values()), dict.fromkeys(DEVICES, 2))
        [new] = after.keys() - before.keys()
        self.assertEqual(after[new], "cuda:2")
        self.assertEqual(self.seen_by_pid(), after)

    def test_jobs_run_in_batches_of_a_gpu_s_size_in_a_share_of_its_memory_and_name_it_as_the_host_does(self) -> None:
        self.hold()
        ids = self.stack.submit_together(["text"] * 2000, model="many")
        self.all_are_busy()
        self.stack.release()
        jobs = self.stack.finished(*ids)
        self.assertEqual({job.output for job in jobs}, {1 / 2 - 1 / 16})  # two share it, each has a context in it
        self.assertGreater(max(job.batch_size or 0 for job in jobs), 32)
        self.assertEqual({job.device for job in jobs}, set(DEVICES))


class ModelsTests(StackCase):
    options = {"models": WHERE + WHERE.replace("[where]", "[there]"), "workers": 0, "replicas": 1}

    def test_a_worker_serves_the_models_that_its_option_names_and_leaves_the_others_to_others(self) -> None:
        self.stack.worker_options = ("-c", "1", "--models", "there")
        self.stack.start_worker("worker1")
        self.stack.ready()
        self.assertEqual([worker.model_names for worker in self.stack.workers.all()], [["there"]])
        waiting = self.stack.submit("where?", model="where")
        self.assert_succeeded("there")
        self.assertEqual(self.stack.jobs.get(pk=waiting).status, Status.QUEUED)
        why = ["where: no living worker serves it."]
        eventually(lambda: self.stack.get("/readyz").json["reasons"] == why, "the service says so")
        self.stack.worker_options = ("-c", "1")
        self.stack.start_worker("worker2", CELERY_WORKER_MODELS="where")
        self.assertEqual(self.stack.finished(waiting)[0].status, Status.SUCCEEDED)
        eventually(lambda: self.stack.get("/readyz").status == 200, "all is served")
        self.assert_succeeded("where", "there")

    def assert_succeeded(self, *models: str) -> None:
        jobs = self.stack.finished(*(self.stack.submit("where?", model=model) for model in models))
        self.assertEqual({job.status for job in jobs}, {Status.SUCCEEDED})


class ManyServersTests(StackCase):
    options = {"models": WHERE, "workers": 2, "replicas": 1}

    def test_what_one_web_server_took_any_worker_runs_and_any_web_server_answers(self) -> None:
        port = free_port()
        self.stack.start(replace(programs.make_web_server(host=HOST, port=port), name="web2"))
        second = f"http://{HOST}:{port}"
        eventually(lambda: status(f"{second}/healthz") == 200, "the second web server answers")
        self.hold()
        ids = self.stack.submit_together(["where?"] * 8, model="where")
        self.all_are_busy()
        self.stack.release()
        self.stack.finished(*ids)
        self.assertEqual(len(set(self.stack.jobs.values_list("worker", flat=True))), 2)
        self.assertEqual({status(f"{second}/v1/jobs/{job_id}/output") for job_id in ids}, {200})


def status(url: str) -> int:
    """Of the answer, or 0 while there is none."""
    try:
        with urlopen(url) as answer:
            return int(answer.status)
    except OSError:
        return 0
