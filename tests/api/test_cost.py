"""What a client sends within the limit of a body costs the web process a bounded amount, and no answer repeats it."""

from __future__ import annotations

import cProfile
import tempfile
from pathlib import Path
from typing import Any

from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from api import codec
from tests.api import hostile
from tests.api.base import ApiTestCase, Response
from tests.e2e.case import StackCase

STATUSES = (202, 400, 401, 404, 413, 414, 415, 422, 431, 503)
# A job costs 14,000 calls of functions where all that its process keeps for seconds is read anew, 6,000 otherwise.
CALLS, CALLS_A_VALUE, CALLS_AN_INPUT = 20_000, 20, 250
PART = 4  # Work grows with the values, and is counted for each of them.
STATEMENTS, INPUTS_A_STATEMENT = 6, 100
MEMORY_MB = 200
ANSWER_BYTES = 64_000
ID_BYTES = 100  # of an accepted job of a bulk
REFUSED_BYTES = 200  # of a refused input
# A process of its own is sent these requests, by parts of their names: each takes most memory for something.
LARGEST = (
    "unknown fields", "299000 marks", "74750 nested", "wide for", "many good", "lines of full", "of 8 MB",
    "backslashes", "a picture",
)  # fmt: skip
UNLIMITED = {"DEBUG": "0", "API_KEY_REQUIRED": "0"}


class CostTests(ApiTestCase):
    """Work is counted: calls of functions, and statements."""

    def test_no_request_takes_much_work_or_is_answered_at_length(self) -> None:
        models = Path(self.enterContext(tempfile.TemporaryDirectory())) / "models.toml"
        models.write_text(hostile.MODELS)
        self.enterContext(override_settings(MODELS_FILE=models))
        for request in hostile.requests(part=PART):
            with self.subTest(request.name, path=request.path[:60]):
                self.assertLessEqual(len(request.body), hostile.MOST)
                with CaptureQueriesContext(connection) as statements, cProfile.Profile() as profile:
                    answer = self.send(request)
                self.assertIn(answer.status_code, STATUSES, answer.content[:500])
                accepted, refused = (len(answer.json().get(name, ())) for name in ("jobs", "refused"))
                inputs = accepted + refused
                calls = sum(each.callcount for each in profile.getstats())
                values = min(codec.MAX_VALUES, sum(map(request.body.count, (b",", b"[", b"{"))))
                self.assertLess(calls, CALLS + CALLS_A_VALUE * values + CALLS_AN_INPUT * inputs)
                self.assertLess(len(statements), STATEMENTS + inputs / INPUTS_A_STATEMENT)
                items_bytes = accepted * ID_BYTES + refused * REFUSED_BYTES
                self.assertLess(len(answer.content), ANSWER_BYTES + items_bytes, answer.content[:500])

    def send(self, request: hostile.Request) -> Response:
        return self.client.generic(
            "POST", request.path, request.body, content_type=request.type, headers=request.headers
        )


class MemoryTests(StackCase):
    options = {"models": hostile.MODELS, "workers": 0, "environment": UNLIMITED}

    def test_no_request_takes_much_memory(self) -> None:
        large = [request for request in hostile.requests() if any(name in request.name for name in LARGEST)]
        self.assertGreater(len(large), 2 * len(LARGEST))
        for request in large:
            with self.subTest(request.name, path=request.path[:60]):
                before = self.memory_mb("VmRSS")
                for pid in self.pids():
                    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the highest memory is counted anew
                headers = {"Content-Type": request.type, **request.headers}
                answer = self.stack.post(request.path, request.body, headers=headers)
                self.assertIn(answer.status, STATUSES, answer.body[:500])
                self.assertLess(self.memory_mb("VmHWM") - before, MEMORY_MB)

    def memory_mb(self, name: str) -> float:
        """The highest or the present memory of the web server and its children."""
        lines = [line for pid in self.pids() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
        return sum(int(line.split()[1]) / 1000 for line in lines if line.startswith(f"{name}:"))

    def pids(self) -> list[Any]:
        pid = self.stack.children["web"].pid
        return [pid, *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
