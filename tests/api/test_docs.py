"""docs/reference/api.md against the service: it has every operation, code and setting, and its Python works."""

import re
import time

from django.conf import settings

from api.errors import problems
from tests import echo
from tests.api.base import ApiTestCase
from tests.api.documented_loop import CODE, TEXT, Session, output_loop


class DocumentTests(ApiTestCase):
    def test_every_operation_is_described(self) -> None:
        for path in self.client.get("/v1/schema").json()["paths"]:
            with self.subTest(path):
                pattern = re.sub(r"\\\{\w+\\\}", r"[\\w…-]+", re.escape(path))
                self.assertRegex(TEXT, pattern)

    def test_every_code_is_in_the_table(self) -> None:
        for code in problems.TABLE.keys() - {"internal"}:
            with self.subTest(code):
                self.assertIn(f"`{code}`", TEXT)

    def test_every_setting_it_names_exists(self) -> None:
        for name in set(re.findall(r"`([A-Z][A-Z_]{5,})(?:=[01])?`", TEXT)) - {"MAX_BODY_BYTES", "TRUST_PROXY"}:
            with self.subTest(name):
                self.assertTrue(hasattr(settings, name))

    def test_the_polling_of_ten_lines_polls(self) -> None:
        self.assertLessEqual(len(CODE.strip().splitlines()), 10)
        job = self.submit("text")
        with self.worker():
            self.assertEqual(output_loop(time)(Session(self.client), "", job["id"]), echo.expected("text"))
