import json
import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from django.conf import settings
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from django.test import Client, SimpleTestCase, TestCase, override_settings

from api.server import middleware

SETTINGS = settings.BASE_DIR / "docs" / "reference" / "settings.md"
SHOW = """
import json, os, runpy, sys
for environment in json.load(sys.stdin):
    os.environ.clear()
    os.environ.update(environment)
    try:
        found = runpy.run_path("project/settings.py")
    except SystemExit as error:
        found = {"refused": error.code}
    print(json.dumps(found, default=str))
"""


class DeployTests(SimpleTestCase):
    def test_production_settings_pass_django_s_own_checks(self) -> None:
        command = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
        checked = subprocess.run(
            command,
            cwd=settings.BASE_DIR,
            env={**os.environ, "DEBUG": "0", "DEVELOPMENT": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual((checked.returncode, checked.stderr), (0, ""))


class SettingsTests(SimpleTestCase):
    """The defaults are those of docs/reference/settings.md, in a process where no variable is set."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def of(self, **variables: str) -> dict[str, Any]:
        (found,) = self.of_each(variables)
        return found

    def of_each(self, *environments: Mapping[str, str]) -> list[dict[str, Any]]:
        """By environment: all settings, or what was said when they were refused."""
        always = {"PATH": os.environ["PATH"], "DATA_DIR": str(self.folder)}
        made = subprocess.run(
            [sys.executable, "-c", SHOW],
            input=json.dumps([{**always, **each} for each in environments]),
            cwd=settings.BASE_DIR,
            env=always,
            capture_output=True,
            text=True,
            check=True,
        )
        return [json.loads(line) for line in made.stdout.splitlines()]

    def test_numbers_are_those_of_the_readme(self) -> None:
        found = self.of()
        rows = re.findall(r"^\| (`[A-Z_`, ]+`) \| ([\d, ]+)(?::[^|]*)? \|", SETTINGS.read_text(), re.MULTILINE)
        said = {
            name: float(number)
            for names, numbers in rows
            for name, number in zip(re.findall(r"[A-Z_]+", names), numbers.split(", "), strict=True)
            if name != "DATABASE_POOL_SIZE"  # of the web process alone
        }
        self.assertGreaterEqual(len(said), 10)
        self.assertEqual({name: float(found[name]) for name in said}, said)

    def test_unless_developing_keys_are_required_and_cookies_want_https(self) -> None:
        names = ("DEBUG", "API_KEY_REQUIRED", "SESSION_COOKIE_SECURE", "CSRF_COOKIE_SECURE", "SECURE_HSTS_SECONDS")
        found = self.of_each({}, {"DEBUG": "1"}, {"DEVELOPMENT": "1"})
        production, debug, development = ([each[name] for name in names] for each in found)
        self.assertEqual(production, [False, True, True, True, 86_400])
        self.assertEqual(debug, [True, False, False, False, 0])
        self.assertEqual(development, [False, False, False, False, 0])

    def test_a_value_that_cannot_be_used_is_refused_in_a_sentence_that_names_its_variable(self) -> None:
        a_file = self.folder / "file"
        a_file.touch()
        wrong = {
            "API_KEY_RATE": "abc", "MAX_BODY_BYTES": "-1", "WORKER_SILENT_S": "nan", "JOB_RETENTION_DAYS": "",
            "API_KEY_REQUIRED": "perhaps", "LOG_LEVEL": "loud", "DATA_DIR": str(a_file),
            "DATABASE_URL": "user:pa55word", "REDIS_URL": "pa55word@host", "BROKER_URL": "pa55word",
            "SERVICE_PREFIX": "two.words", "FILE_STORAGE_OPTIONS": "[]",
        }  # fmt: skip
        for name, found in zip(wrong, self.of_each(*({name: wrong[name]} for name in wrong)), strict=True):
            with self.subTest(name):
                self.assertRegex(found["refused"], rf"\AError: {name} .*\.\Z")
                self.assertNotIn("pa55word", found["refused"])

    def test_who_may_wait_for_longer_may_wait_for_a_connection_for_longer(self) -> None:
        always = {"DATABASE_URL": "postgres://u:p@h/d", "DATABASE_POOL_SIZE": "4"}
        found = self.of_each(*({**always, "DATABASE_ANSWER_S": limit} for limit in ("0", "4", "180")))
        pools = [each["DATABASES"]["default"]["OPTIONS"]["pool"] for each in found]
        self.assertEqual([pool["timeout"] for pool in pools], [2.5, 2.5, 90.0])

    def test_a_prefix_cannot_make_one_name_of_two(self) -> None:
        """Such as inference.inference.a, of the model inference.a or of the prefix inference."""
        prefixes = ("inference", "a.b", "A", "-a", "a" * 51, "shop-2")
        *refused, taken = self.of_each(*({"SERVICE_PREFIX": prefix} for prefix in prefixes))
        for prefix, found in zip(prefixes, refused, strict=False):
            with self.subTest(prefix):
                self.assertIn("refused", found)
        self.assertEqual(taken["SERVICE_PREFIX"], "shop-2.")

    def test_a_proxy_is_believed_only_where_that_is_said(self) -> None:
        unsaid, said = self.of_each({}, {"TRUST_PROXY": "1"})
        self.assertIsNone(unsaid.get("SECURE_PROXY_SSL_HEADER"))
        self.assertEqual(said["SECURE_PROXY_SSL_HEADER"], ["HTTP_X_FORWARDED_PROTO", "https"])

    def test_hosts_are_separated_by_commas(self) -> None:
        self.assertEqual(self.of(ALLOWED_HOSTS="a.example, b.example")["ALLOWED_HOSTS"], ["a.example", "b.example"])

    def test_a_secret_is_generated_once_a_data_folder_and_nobody_else_reads_it(self) -> None:
        first = self.of()["SECRET_KEY"]
        self.assertEqual(self.of()["SECRET_KEY"], first)
        (file,) = (path for path in self.folder.rglob("*") if path.is_file() and first in path.read_text())
        self.assertEqual(stat.S_IMODE(file.stat().st_mode), 0o600)
        file.write_text("")  # of a disk that was full
        self.assertGreater(len(self.of()["SECRET_KEY"]), 60)
        self.assertNotEqual(self.of(DATA_DIR=str(self.folder / "other"))["SECRET_KEY"], first)


class PageTests(TestCase):
    def test_the_admin_s_forms_are_protected_from_other_sites(self) -> None:
        client = Client(enforce_csrf_checks=True)
        self.assertEqual(client.post("/admin/login/", {"username": "a", "password": "b"}).status_code, 403)

    def test_the_admin_s_pages_have_an_id_and_may_not_be_framed(self) -> None:
        answer = self.client.get("/admin/login/", headers={"X-Request-Id": "page-1"})
        self.assertEqual((answer["X-Request-Id"], answer["X-Frame-Options"]), ("page-1", "DENY"))


class RememberedTests(TestCase):
    """Addresses are remembered, and anybody may send them: no key is asked for yet."""

    def test_a_long_one_is_answered_and_not_kept(self) -> None:
        self.client.get("/v1/models")
        before = self.kept()
        self.assertEqual(self.client.get(f"/v1/models/{'a' * 300}").status_code, 401)
        self.assertEqual(self.kept(), before)

    def test_a_long_host_is_compared_as_any_other(self) -> None:
        for host, status in ((f"localhost:{'0' * 300}80", 401), (f"{'a' * 300}.example", 400)):
            with self.subTest(host), override_settings(ALLOWED_HOSTS=["localhost"]):
                self.assertEqual(self.client.get("/v1/models", headers={"Host": host}).status_code, status)

    def test_what_a_page_is_sent_is_bounded_before_it_is_stored_split_or_logged(self) -> None:
        anybody = Client(enforce_csrf_checks=True)
        anybody.get("/admin/login/")
        long, file = "a" * 9000, SimpleUploadedFile("a", b"x" * (settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1))
        with self.assertNoLogs("django.security"), patch.object(TemporaryFileUploadHandler, "new_file") as stored:
            for status, sent in (
                (413, {"data": {"file": file}}),
                (400, {"headers": {"Origin": f"http://{long}"}}),
                (400, {"headers": {"Referer": f"https://{long}"}}),
                (400, {"headers": {"Host": long}}),
                (400, {"query_params": {"next": long}}),
            ):
                with self.subTest(status=status, sent=[*sent]):
                    answer = anybody.post("/admin/login/", **sent)
                    self.assertEqual((answer.status_code, answer["X-Content-Type-Options"]), (status, "nosniff"))
            self.assertEqual(anybody.get(f"/admin/{long}").status_code, 400)
        stored.assert_not_called()

    def kept(self) -> int:
        return middleware.resolve_api_path.cache_info().currsize
