"""docs/api.md against the service: every operation, every code, every setting is in it, and its Python works."""

import re
import time
from pathlib import Path
from types import SimpleNamespace

from django.conf import settings

from api import errors
from inference.engines import echo
from tests.api.base import ApiTestCase

TEXT = (Path(settings.BASE_DIR) / "docs" / "api.md").read_text()


class DocumentTests(ApiTestCase):
    def test_every_operation_is_described(self):
        for path in self.client.get("/v1/schema").json()["paths"]:
            with self.subTest(path):
                pattern = re.sub(r"\\\{\w+\\\}", r"[\\w…-]+", re.escape(path))
                self.assertRegex(TEXT, pattern)

    def test_every_code_is_in_the_table(self):
        for code in errors.TABLE.keys() - {"internal"}:
            with self.subTest(code):
                self.assertIn(f"`{code}`", TEXT)

    def test_every_setting_it_names_exists(self):
        for name in set(re.findall(r"`([A-Z][A-Z_]{5,})(?:=[01])?`", TEXT)) - {"MAX_BODY_BYTES", "TRUST_PROXY"}:
            with self.subTest(name):
                self.assertTrue(hasattr(settings, name))

    def test_the_polling_of_ten_lines_polls(self):
        (code,) = re.findall(r"```python\n(def output.*?)```", TEXT, re.DOTALL)
        self.assertLessEqual(len(code.strip().splitlines()), 10)
        names = {"time": time}
        exec(code, names)
        job = self.submit("text")
        with self.worker():
            self.assertEqual(names["output"](Session(self.client), "", job["id"]), echo.expected("text"))


class Session:
    """As much of requests.Session as the example needs."""

    def __init__(self, client):
        self.client = client

    def get(self, address, timeout):
        answer = self.client.get(address)
        return SimpleNamespace(
            status_code=answer.status_code, headers=answer.headers, json=answer.json, raise_for_status=lambda: None
        )
