"""What the web process keeps of requests that are over, where the collector seldom runs by itself."""

import gc
import io
import json
import subprocess
import sys
import weakref
from typing import Any
from unittest.mock import patch

from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.test import SimpleTestCase

from project import garbage

BODY = json.dumps({"inputs": "x" * 100_000}).encode()


class GarbageTests(SimpleTestCase):
    def setUp(self) -> None:
        gc.disable()
        self.addCleanup(gc.enable)
        self.enterContext(patch.object(garbage, "MOST_BYTES", 10 * len(BODY)))
        self.bodies: weakref.WeakSet[io.BytesIO] = weakref.WeakSet()

    def post(self, application: garbage.Application, **environ: str) -> None:
        body = io.BytesIO(BODY)
        self.bodies.add(body)
        told = {
            "REQUEST_METHOD": "POST", "PATH_INFO": "/v1/models/nobody", "SERVER_NAME": "localhost", "SERVER_PORT": "80",
            "CONTENT_TYPE": "application/json", "CONTENT_LENGTH": str(len(BODY)), "wsgi.input": body,
            "wsgi.url_scheme": "http", **environ,
        }  # fmt: skip
        b"".join(application(told, lambda *head: None))

    def test_bodies_are_kept_up_to_a_sum_of_their_bytes(self) -> None:
        application = garbage.CollectBodies(WSGIHandler())
        most = 0
        for _ in range(50):
            self.post(application)
            most = max(most, len(self.bodies))
        self.assertLessEqual(most, 11)

    def test_lengths_of_what_is_refused_unread_collect_nothing(self) -> None:
        application: Any = garbage.CollectBodies(lambda environ, start_response: [b""])
        with patch.object(gc, "collect") as collect:
            for length in ("", "-1", "x", str(settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1)):
                self.post(application, CONTENT_LENGTH=length)
            collect.assert_not_called()

    def test_the_web_process_counts_them(self) -> None:
        code = "from project import garbage, wsgi; assert type(wsgi.application.application) is garbage.CollectBodies"
        subprocess.run([sys.executable, "-c", code], check=True, cwd=settings.BASE_DIR)
