"""The main job on a real model: 64 clients at once, batches, the right answers, 504 and a later poll; torch's place."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Avg

from inference.catalog import reader
from inference.engines.artifacts import weights
from inference.models import PausedModel, Status
from tests import processes
from tests.conditions import eventually
from tests.e2e.case import StackCase
from tests.ports import HOST
from tests.stack import admin_session

CLIENTS = 64
README_EXAMPLE = re.compile(
    r"curl http://127\.0\.0\.1:8000(\S+) .*\n +-d '(.*)'\n```\n\n```\n\[(.*), \.\.\. 384 numbers\]"
)
README_COMMANDS = re.compile(r"^```\n(curl .*?)```", re.DOTALL | re.MULTILINE)
HELD = """
[held]
engine = "tests.echo:EchoEngine"
time_limit_s = 180
"""
SENTENCE = "a cat sat on the mat while the queue of jobs grew longer and the batch was formed by length"
TEXTS = [f"{SENTENCE[n % 40 :]} {n}" for n in range(CLIENTS)]


def bare_answers(texts: list[str]) -> list[list[float]]:
    """What the model says without the service: the library's pipeline, one text at a time, mean and length one."""
    from transformers import pipeline

    spec = reader.load_catalog(settings.BASE_DIR / "models.toml")["embeddings"]
    extract = pipeline("feature-extraction", model=str(weights.fetch_folder(spec)), device="cpu")
    return [normal(extract(text)[0]) for text in texts]


def sent(command: str) -> Any:
    """What a curl command of a page prints, as JSON."""
    answer = subprocess.run(["bash", "-c", f"{command} -s"], capture_output=True, text=True, check=True)
    return json.loads(answer.stdout)


def normal(tokens: list[list[float]]) -> list[float]:
    mean = [sum(column) / len(tokens) for column in zip(*tokens, strict=True)]
    length = math.sqrt(sum(value * value for value in mean))
    return [value / length for value in mean]


class TestMainJob(StackCase):
    options = {"models": (settings.BASE_DIR / "models.toml").read_text() + HELD}

    def embed(self, text: str) -> Any:
        answer = self.stack.call(text, model="embeddings")
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json

    def test_64_clients_get_the_bare_pipeline_s_answers_in_batches(self) -> None:
        paused, queued = PausedModel.objects.using(self.stack.alias), self.stack.jobs.filter(status=Status.QUEUED)
        paused.create(model="embeddings")
        eventually(self.is_held_back, "the worker begins nothing")
        with ThreadPoolExecutor(CLIENTS) as clients:
            answering = clients.map(self.embed, TEXTS)
            eventually(lambda: queued.count() == CLIENTS, "all have asked", every_s=0.2)
            paused.all().delete()
            answers = list(answering)
        for text, answer, bare in zip(TEXTS, answers, bare_answers(TEXTS), strict=True):
            self.assertLess(max(abs(a - b) for a, b in zip(answer, bare, strict=True)), 1e-4, text)
        served = self.stack.jobs.filter(status=Status.SUCCEEDED, inputs__in=TEXTS)
        self.assertEqual(served.count(), len(TEXTS))
        self.assertGreater(served.aggregate(mean=Avg("batch_size"))["mean"], 4)
        self.assert_admin_shows_batches(set(served.values_list("batch_size", flat=True)))

    def is_held_back(self) -> bool:
        return any(e.name == "embeddings" and e.held_back for e in self.stack.workers.get().catalog.models)

    def assert_admin_shows_batches(self, sizes: set[int | None]) -> None:
        User.objects.db_manager(self.stack.alias).create_superuser("operator", password="secret")
        pages = admin_session(f"http://{HOST}:{self.stack.port}", "operator", "secret")
        listed = pages("/admin/inference/job/?model=embeddings")
        shown = {int(size) for size in re.findall(r'<td class="field-batched"><a [^>]+>(\d+)</a></td>', listed)}
        self.assertLessEqual(shown, sizes)
        self.assertGreater(max(shown), 4)
        self.assertRegex(pages("/admin/"), r"[1-9]\d* batches of (5-8|9-16|17-32)")

    def test_readme_shows_a_request_and_the_answer_that_it_really_gets(self) -> None:
        path, body, shown = README_EXAMPLE.findall((settings.BASE_DIR / "README.md").read_text())[0]
        answer = self.stack.post(path, json.loads(body)).json
        numbers = [float(number) for number in shown.split(",")]
        self.assertLess(max(abs(a - b) for a, b in zip(numbers, answer, strict=False)), 1e-5)
        self.assertEqual((len(numbers), len(answer)), (4, 384))

    @unittest.skipUnless(shutil.which("curl") or os.environ.get("CI"), "curl is not installed")
    def test_the_commands_of_the_readme_are_answered_as_it_says(self) -> None:
        blocks = README_COMMANDS.findall((settings.BASE_DIR / "README.md").read_text())
        blocking, submit, poll = (block.strip().replace(":8000", f":{self.stack.port}") for block in blocks)
        self.assertEqual(len(sent(blocking)), 384)
        job = sent(submit)
        self.assertEqual((job["model"], job["status"]), ("embeddings", "queued"))
        finished = sent(re.sub("[0-9a-f-]{36}", job["id"], poll))
        self.assertEqual((finished["id"], finished["status"]), (job["id"], "succeeded"))
        self.assertEqual(len(finished["output"]), 384)

    def test_a_wait_that_is_over_gives_504_and_the_job_is_polled_later(self) -> None:
        self.hold()
        late = {"text": "late", "fail": "held"}
        answer = self.stack.post("/v1/models/held?timeout=0.01", {"inputs": late})
        self.assertEqual(answer.status, 504)
        self.assertEqual(answer.headers["content-type"], "application/problem+json")
        job_id = UUID(answer.json["job_id"])
        self.stack.release()
        self.stack.finished(job_id)
        polled = self.stack.get(f"/v1/jobs/{job_id}")
        self.assertEqual((polled.status, polled.json["status"]), (200, "succeeded"))
        self.assertEqual(self.stack.get(f"/v1/jobs/{job_id}/output").json["echo"], late)

    def test_torch_is_loaded_in_pool_children_and_what_forks_them_only(self) -> None:
        self.embed("so that each part has done its work")
        replicas = self.stack.replica_pids()
        for pid in replicas:
            self.assertIn("libtorch", processes.maps(pid))
        worker, web = self.stack.children["worker1"], self.stack.children["web"]
        having = {*replicas, *map(processes.parent, replicas)}
        others = [pid for part in (worker, web) for pid in processes.of_group(part.pid) if pid not in having]
        self.assertGreaterEqual(set(others), {worker.pid, web.pid})
        for pid in others:
            self.assertNotIn("libtorch", processes.maps(pid))
