import os
import subprocess
import sys

from django.conf import settings
from django.test import Client, SimpleTestCase, TestCase


class DeployTests(SimpleTestCase):
    def test_production_settings_pass_django_s_own_checks(self):
        command = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
        checked = subprocess.run(
            command,
            cwd=settings.BASE_DIR,
            env={**os.environ, "DEBUG": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual((checked.returncode, checked.stderr), (0, ""))


class PageTests(TestCase):
    def test_the_admin_s_forms_are_protected_from_other_sites(self):
        client = Client(enforce_csrf_checks=True)
        self.assertEqual(client.post("/admin/login/", {"username": "a", "password": "b"}).status_code, 403)

    def test_the_admin_s_pages_have_an_id_and_may_not_be_framed(self):
        answer = self.client.get("/admin/login/", headers={"X-Request-Id": "page-1"})
        self.assertEqual((answer["X-Request-Id"], answer["X-Frame-Options"]), ("page-1", "DENY"))
