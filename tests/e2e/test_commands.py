"""`manage.py run` and `manage.py models`, for a person on the server of a running service."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence

from django.conf import settings

from inference.models import Job, PausedModel, Status
from tests import echo
from tests.conditions import PATIENCE_S, eventually
from tests.e2e.case import StackCase
from tests.stack import ECHO

MODELS = f"""{ECHO}
[echo.parameters]
loud = {{ type = "boolean" }}

[reviews]
engine = "tests.echo:EchoEngine"
task = "text-classification"
model = "some-organization/reviews"
revision = "714eb0f"

[slow]
engine = "tests.echo:EchoEngine"
options = {{ gate = "{echo.HELD}" }}
time_limit_s = 180

[missing]
engine = "no.such.module:Engine"
"""


ONE_AFTER_THE_OTHER = """
import json, manage, sys

for arguments in json.loads(sys.argv[1]):
    sys.argv = ["manage.py", *arguments]
    try:
        manage.main()
    except SystemExit as end:
        assert end.code
        print("refused", file=sys.stderr)
"""


class CommandsTests(StackCase):
    options = {"models": MODELS, "replicas": 1}

    def manage(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            env={**os.environ, **self.stack.environment, **environment},
            cwd=settings.BASE_DIR,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def refused(self, *commands: Sequence[str], **environment: str) -> list[str]:
        """Run all in one process, and return the one line, or argparse's usage, that each says."""
        run = subprocess.run(
            [sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps(commands)],
            env={**os.environ, **self.stack.environment, **environment},
            cwd=settings.BASE_DIR,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        self.assertNotIn("Traceback", run.stderr)
        *said, rest = run.stderr.split("refused\n")
        self.assertEqual((len(said), rest), (len(commands), ""))
        return said

    def newest(self) -> Job:
        job = self.stack.jobs.first()
        assert job
        return job

    def test_a_text_goes_through_the_queue_and_its_answer_is_printed(self) -> None:
        run = self.manage("run", "echo", "où?", "--parameters", '{"loud": true}')
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertEqual(json.loads(run.stdout), echo.expected("où?"))
        self.assertEqual((self.newest().parameters, self.newest().attempts), ({"loud": True}, 1))

    def test_what_is_wrong_is_one_sentence(self) -> None:
        cases = (
            (("run", "ecko", "a"), "There is no model 'ecko'. Known models: echo, missing, reviews, slow."),
            (("run", "missing", "a"), "No worker serves 'missing' now. Its worker cannot run it."),
            (("run", "missing", "a"), "no.such.module:Engine' names a module that is not there"),
            (("run", "echo", "a", "--parameters", '{"lout": true}'), "did you mean loud?"),
            (("run", "echo", "a", "--parameters", "[3]"), "--parameters: must be an object, such as '{\"top_k\": 3}'"),
            (("run", "echo", "a", "--parameters", "{"), "--parameters: not JSON: "),
            (("run", "echo", "a", "--timeout", "soon"), "--timeout: must be a number of seconds from 0 to 86400"),
        )
        for (arguments, sentence), said in zip(cases, self.refused(*(case[0] for case in cases)), strict=True):
            with self.subTest(arguments):
                self.assertIn(sentence, said)

    def test_without_a_database_that_is_said(self) -> None:
        empty = f"sqlite:///{self.stack.folder}/empty.sqlite3"
        for said in self.refused(("run", "echo", "a"), ("models",), DATABASE_URL=empty):
            self.assertIn("The database does not answer: no such table", said)

    def test_a_job_that_is_not_finished_in_time_goes_on_and_is_named(self) -> None:
        self.hold()
        (said,) = self.refused(("run", "slow", "a", "--timeout", "0"))
        self.stack.release()
        job = self.newest()
        self.assertIn(f"Not finished within 0 s. The job goes on: /v1/jobs/{job.pk}", said)
        self.assertEqual(self.stack.finished(job.pk)[0].status, Status.SUCCEEDED)

    def test_a_job_that_waits_for_a_paused_model_is_said_to(self) -> None:
        self.hold()
        first = self.stack.submit("occupies the only replica", model="slow")
        eventually(lambda: self.is_running(first), "the replica is busy")
        PausedModel.objects.using(self.stack.alias).create(model="slow")
        (said,) = self.refused(("run", "slow", "a", "--timeout", "0"))
        PausedModel.objects.using(self.stack.alias).all().delete()
        self.stack.release()
        self.assertIn("within 0 s. 'slow' is paused: its jobs wait until it is resumed. The job goes on", said)
        self.assertEqual(self.stack.finished(self.newest().pk)[0].status, Status.SUCCEEDED)

    def test_the_models_are_listed_with_their_weights_who_serves_them_and_what_waits(self) -> None:
        run = self.manage("models")
        self.assertEqual(run.returncode, 0, run.stderr)
        _, reviews, _, missing = re.split("^(?:reviews|slow|missing)$", run.stdout, flags=re.MULTILINE)
        worker = self.stack.workers.get().name
        for fact in (
            "task       text-classification", "weights    some-organization/reviews", "revision   714eb0f",
            f"served by  {worker}, 1 of 1 replicas on cpu", "queue      inference.reviews, 0 jobs wait",
        ):  # fmt: skip
            self.assertIn(fact, reviews)
        self.assertIn(f"served by  not by {worker}: engine 'no.such.module:Engine' names a module", missing)
