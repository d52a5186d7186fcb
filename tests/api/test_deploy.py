import json
import os
import re
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from django.conf import settings
from django.test import Client, SimpleTestCase, TestCase

README = settings.BASE_DIR / "README.md"


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
    """What README says of variables that are not set, in a process where none is."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def of(self, **variables: str) -> dict[str, Any]:
        show = "import json; from project import settings; print(json.dumps(vars(settings), default=str))"
        made = subprocess.run(
            [sys.executable, "-c", show], cwd=settings.BASE_DIR, capture_output=True, text=True, check=True,
            env={"PATH": os.environ["PATH"], "DATA_DIR": str(self.folder), **variables},
        )  # fmt: skip
        found: dict[str, Any] = json.loads(made.stdout)
        return found

    def test_numbers_are_those_of_the_readme(self) -> None:
        found = self.of()
        rows = re.findall(r"^\| (`[A-Z_`, ]+`) \| ([\d, ]+)(?::[^|]*)? \|", README.read_text(), re.MULTILINE)
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
        values = {name: [self.of(**{name: "1"})[setting] for setting in names] for name in ("DEBUG", "DEVELOPMENT")}
        self.assertEqual([self.of()[name] for name in names], [False, True, True, True, 86_400])
        self.assertEqual(values["DEBUG"], [True, False, False, False, 0])
        self.assertEqual(values["DEVELOPMENT"], [False, False, False, False, 0])

    def test_a_value_that_cannot_be_used_is_told_in_a_sentence_that_names_its_variable(self) -> None:
        a_file = self.folder / "file"
        a_file.touch()
        wrong = {
            "API_KEY_RATE": "abc", "MAX_BODY_BYTES": "-1", "WORKER_SILENT_S": "nan", "JOB_RETENTION_DAYS": "",
            "API_KEY_REQUIRED": "perhaps", "LOG_LEVEL": "loud", "DATA_DIR": str(a_file),
            "DATABASE_URL": "user:pa55word", "REDIS_URL": "pa55word@host", "BROKER_URL": "pa55word",
            "SERVICE_PREFIX": "two.words",
        }  # fmt: skip
        for name, value in wrong.items():
            with self.subTest(name), self.assertRaises(subprocess.CalledProcessError) as ended:
                self.of(**{name: value})
            self.assertRegex(ended.exception.stderr, rf"\AError: {name} .*\.\n\Z")
            self.assertNotIn("pa55word", ended.exception.stderr)

    def test_a_prefix_cannot_make_one_name_of_two(self) -> None:
        """Such as inference.inference.a, of the model inference.a or of the prefix inference."""
        for prefix in ("inference", "a.b", "A", "-a", "a" * 51):
            with self.subTest(prefix), self.assertRaises(subprocess.CalledProcessError):
                self.of(SERVICE_PREFIX=prefix)
        self.assertEqual(self.of(SERVICE_PREFIX="shop-2")["SERVICE_PREFIX"], "shop-2.")

    def test_a_proxy_is_believed_only_where_that_is_said(self) -> None:
        self.assertIsNone(self.of().get("SECURE_PROXY_SSL_HEADER"))
        self.assertEqual(self.of(TRUST_PROXY="1")["SECURE_PROXY_SSL_HEADER"], ["HTTP_X_FORWARDED_PROTO", "https"])

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
