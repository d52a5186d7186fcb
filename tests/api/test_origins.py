"""Pages of the sites in ALLOWED_ORIGINS may call the API from a browser, and those of others may not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any
from unittest import TestCase
from unittest.mock import patch

from django.conf import settings

from project import environment

SITE = "https://app.example.org"
# Headers that the npm packages openai and cohere-ai send by themselves.
SENT = ("x-stainless-lang", "x-stainless-retry-count", "x-stainless-timeout", "x-fern-sdk-version")
WRONG = ("*", "app.example.org", "https://app.example.org/", "https://App.example.org", "https://app.example.org:443")
# Settings are read once a process.
PROGRAM = f"""
import json, django
django.setup()
from django.test import Client
requests = [("OPTIONS", "/v1/jobs"), ("GET", "/healthz"), ("OPTIONS", "/admin/"), ("GET", "/v1/jobs")]
answers = []
for origin in ("{SITE}", "https://other.example.org"):
    for method, path in requests:
        headers = {{"Origin": origin, "Access-Control-Request-Method": "POST"}}
        answer = Client(headers=headers).generic(method, path)
        answers.append([origin, method, path, answer.status_code, dict(answer.headers)])
print(json.dumps(answers))
"""


def fetch_answers(origins: str) -> list[Any]:
    environment = {**os.environ, "ALLOWED_ORIGINS": origins, "DEVELOPMENT": "0", "ALLOWED_HOSTS": "testserver"}
    environment["DJANGO_SETTINGS_MODULE"] = "project.settings"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=settings.BASE_DIR,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    answers: list[Any] = json.loads(done.stdout)
    return answers


class OriginsTests(TestCase):
    def test_a_site_that_is_allowed_may_call_the_api_and_read_what_it_answers(self) -> None:
        for origin, method, path, status, headers in fetch_answers(f"{SITE},https://third.example.org"):
            with self.subTest(origin, path=path):
                is_allowed = origin == SITE and not path.startswith("/admin")
                self.assertEqual(headers.get("access-control-allow-origin"), SITE if is_allowed else None)
                self.assertIn("X-Request-Id", headers)
                if method == "OPTIONS" and is_allowed:
                    self.assertEqual(status, 200)
                    taken = headers["access-control-allow-headers"].split(", ")
                    self.assertLessEqual({"idempotency-key", "authorization", *SENT}, set(taken))
                elif is_allowed:
                    self.assertIn("x-should-retry", headers["access-control-expose-headers"])
                self.assertNotIn("access-control-allow-credentials", headers)
        self.assertEqual(status, 401)  # a key is needed from there, too

    def test_what_no_browser_sends_is_refused_with_what_would_be_right(self) -> None:
        for origin in WRONG:
            with patch.dict(os.environ, ALLOWED_ORIGINS=f"{SITE},{origin}"), self.assertRaises(SystemExit) as refused:
                environment.read_origins("ALLOWED_ORIGINS")
            self.assertIn(
                f"such as https://app.example.org or http://localhost:3000, not {origin!r}", str(refused.exception)
            )

    def test_none_is_allowed_unasked(self) -> None:
        for _, method, path, status, headers in fetch_answers(""):
            self.assertNotIn("access-control-allow-origin", headers)
            if (method, path) == ("OPTIONS", "/v1/jobs"):
                self.assertEqual(status, 401)
