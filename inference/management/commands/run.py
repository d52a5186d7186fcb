"""The command `manage.py run MODEL "text"`, which runs one job through the queue, for a person on the server."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from batch_inference_client.command import parse_json_object
from inference.catalog.lookup import get_spec
from inference.management.command_errors import show_errors_as_sentences
from inference.models import Job, Status
from inference.status import readiness
from inference.submission import jobs
from inference.submission.submissions import Submission


class Command(BaseCommand):
    help = "Run a model on a text, through the queue as clients do, and print the answer as JSON."
    requires_system_checks = ()  # the command itself reports what is wrong with the models file

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("model", help="its name in models.toml")
        parser.add_argument("text")
        parser.add_argument(
            "--parameters", type=parse_json_object, default={}, help="""as JSON, such as '{"top_k": 3}'"""
        )
        parser.add_argument(
            "--timeout", type=parse_seconds, default=60.0, help="seconds to wait for the answer (default 60)"
        )

    def handle(
        self, *args: Any, model: str, text: str, parameters: dict[str, Any], timeout: float, **options: Any
    ) -> None:
        with show_errors_as_sentences():
            submission = Submission(spec=get_spec(model), inputs=text, parameters=parameters)
            job = jobs.run(submission, timeout_s=timeout)
        self.stdout.write(json.dumps(get_job_output(job, timeout), ensure_ascii=False))


def get_job_output(job: Job, waited_s: float) -> Any:
    if job.status == Status.SUCCEEDED:
        return job.output
    if not job.is_finished:
        over = f"Not finished within {waited_s:g} s."
        goes_on = f"The job goes on: /v1/jobs/{job.id}"
        raise CommandError(" ".join(filter(None, (over, readiness.explain_job_wait(job), goes_on))))
    raise CommandError(f"The job {job.id} {job.status}: {': '.join(filter(None, (job.error_code, job.full_detail)))}")


def parse_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 86_400:
        raise ArgumentTypeError(f"must be a number of seconds from 0 to 86400, not {text!r}")
    return value
