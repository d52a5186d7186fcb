"""The report of `manage.py up` once it runs: how loading goes, and a real request to itself with its answer."""

import http.client
import json
import os
import shlex
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import datetime
from typing import Any

import redis
from django.conf import settings
from django.db import DatabaseError, connection

from inference import clock
from inference.broker import publisher, redis_client
from inference.catalog import lookup, tasks
from inference.catalog.specs import ModelSpec
from inference.connection_retries import Backoff
from inference.errors import BrokerUnavailable
from inference.models import Worker
from inference.status import readiness
from inference.status.workers import SERVING

REPORT_EVERY_S = 5.0
REQUEST_TIMEOUT_S = 60.0
LONGEST_ANSWER = 400  # characters

NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def find_broker_problem() -> str:
    """Return why the broker, or the Redis of the notices, cannot be used, and which variable says where it is.

    The text is empty if both can be used.
    """
    try:
        publisher.ping_broker()
        if not publisher.uses_redis():
            redis_client.get_client().ping()
    except BrokerUnavailable as error:
        return f"{error.message.rstrip('.')}. {_variable('REDIS_URL' if publisher.uses_redis() else 'BROKER_URL')}"
    except redis.RedisError as error:
        return f"The Redis of the notices cannot be used: {str(error).rstrip('.')}. {_variable('REDIS_URL')}"
    return ""


def _variable(name: str) -> str:
    return f"{name} says where it is." if name in os.environ else "Its own lines say why."


def shorten_answer(value: Any) -> Any:
    """Return an answer that is short enough to look at: long lists keep their head, and numbers four decimals."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: shorten_answer(item) for key, item in value.items()}
    if isinstance(value, list):
        head = [shorten_answer(item) for item in value[:4]]
        return head if len(value) <= 4 else [*head[:3], f"... {len(value) - 3} more"]
    return value


class StartupReport(threading.Thread):
    def __init__(self, *, host: str, port: int, log: Callable[[str, str], None], stopping: threading.Event) -> None:
        super().__init__(name="startup-report", daemon=True)
        reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
        self.url = f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"
        self.log, self.stopping = log, stopping
        self.begun_at: datetime = clock.estimate_now()

    def run(self) -> None:
        try:
            worker = self.wait_until(
                "the worker to load its models", self.find_ready_worker, obstacle=find_broker_problem
            )
            answers = self.wait_until("the web server", self.is_web_answering)
        finally:
            connection.close()
        if worker and answers:
            self.print_introduction(worker)

    def print_text(self, text: str) -> None:
        self.log("up", text)

    def wait_until(self, what: str, condition: Callable[[], Any], obstacle: Callable[[], str] = str) -> Any:
        """Return what `condition` returns once that is true, or None if the service stops.

        Meanwhile a line every `REPORT_EVERY_S` says what is waited for, and what `obstacle` says is in the way.
        """
        begun_s = reported_s = time.monotonic()
        backoff = Backoff(first_s=0.1, longest_s=0.5)
        while not self.stopping.wait(backoff.take_next_pause_s()):
            if result := condition():
                return result
            if time.monotonic() - reported_s > REPORT_EVERY_S:
                reported_s = time.monotonic()
                self.print_text(" ".join((f"waiting for {what}: {reported_s - begun_s:.0f} s.", obstacle())).strip())
        return None

    def find_ready_worker(self) -> Worker | None:
        try:
            return Worker.objects.filter(started_at__gte=self.begun_at, state__in=SERVING).first()
        except DatabaseError as error:
            self.print_text(f"the database does not answer yet: {error}")
            connection.close()
            return None

    def is_web_answering(self) -> bool:
        try:
            return bool(NO_PROXY.open(f"{self.url}/healthz", timeout=5).status == 200)
        except (OSError, http.client.HTTPException):
            return False

    def print_introduction(self, worker: Worker) -> None:
        served = {name: spec for name, spec in lookup.get_catalog().items() if name in worker.model_names}
        for name in sorted(lookup.get_catalog().keys() - served):
            why_not = readiness.find_worker_unready_reason(worker, name)
            self.print_text(f"model {name} is not served: {why_not.text if why_not else 'no worker was asked to.'}")
        manage = f"{_settings_that_differ()}{min(os.path.relpath(sys.executable), sys.executable, key=len)} manage.py"
        key = "A request needs an API key, which" if settings.API_KEY_REQUIRED else "An API key"
        self.print_lines(
            f"Ready on {self.url}, serving {', '.join(served) or 'no model'}.",
            *self.send_first_request(
                next((spec for spec in served.values() if tasks.find_task(spec.task).example), None)
            ),
            f"{key} is made by: {manage} create_api_key NAME",
            f"The admin: {self.url}/admin/ (an operator is made by: {manage} createsuperuser)",
            f"What it can do, to be tried out: {self.url}/v1/docs",
            f"Its models are those of {settings.MODELS_FILE}: edit it while all this runs.",
            "Ctrl-C stops everything.",
        )

    def print_lines(self, *lines: str) -> None:
        """Show lines to the reader apart from the log, so that lines to copy stand alone."""
        self.log("", "\n" + "".join(f"  {line}\n" for line in lines))

    def send_first_request(self, spec: ModelSpec | None) -> list[str]:
        """Send a request over HTTP, and return the lines that show it and the answer it got.

        There are none if there is no `spec` to call, or if a request needs an API key.
        """
        if spec is None or settings.API_KEY_REQUIRED:
            return []
        url, body = f"{self.url}/v1/models/{spec.name}", json.dumps(tasks.find_task(spec.task).example)
        begun_s = time.monotonic()
        try:
            answer = post_json(url, body)
        except (OSError, ValueError) as error:
            return [f"A first request failed: {error}"]
        took_ms = (time.monotonic() - begun_s) * 1000
        curl = f"  curl {url} -H 'Content-Type: application/json' -d {shlex.quote(body)}"
        return [f"A request, and the answer it got in {took_ms:.0f} ms:", "", curl, "", f"  {answer}", ""]


def _settings_that_differ() -> str:
    """Return the variables with which a command in another terminal finds this service's database.

    A password is not shown.
    """
    if "DATABASE_URL" in os.environ:
        return 'DATABASE_URL="$DATABASE_URL" '
    folder = os.environ.get("DATA_DIR")
    return f"DATA_DIR={shlex.quote(folder)} " if folder else ""


def post_json(url: str, body: str) -> str:
    """Send a POST and return its answer, shortened. An error is an answer, too."""
    request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})  # noqa: S310 - http
    try:
        with NO_PROXY.open(request, timeout=REQUEST_TIMEOUT_S) as response:
            answer = response.read()
    except urllib.error.HTTPError as error:
        answer = error.read()
    return json.dumps(shorten_answer(json.loads(answer)))[:LONGEST_ANSWER]
