"""The operator's pages with rows to show, in a real browser: what each test of them begins with."""

from __future__ import annotations

import os
import unittest
from typing import Any

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.staticfiles.testing import StaticLiveServerTestCase

from tests.browser import CHROMIUM, Browser

needed = unittest.skipUnless(CHROMIUM or os.environ.get("CI"), "Chromium is not installed")


def session_of(user: User) -> str:
    """The value of the cookie of one who has logged in."""
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    return str(session.session_key)


@needed
class BrowserCase(StaticLiveServerTestCase):
    """A page that complains, or asks another host for something, fails its test."""

    browser: Browser

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.browser = cls.enterClassContext(Browser())

    def log_in(self, user: User | None = None) -> None:
        user = user or User.objects.create_superuser("operator")
        self.browser.log_in(self.live_server_url, session_of(user))

    def open(self, path: str) -> None:
        self.browser.open(self.live_server_url + path)

    def value(self, script: str) -> Any:
        return self.browser.evaluate(script)

    def tearDown(self) -> None:
        self.browser.open("about:blank")  # what a page goes on asking for is not there for the next test
        complaints, urls = self.browser.complaints[:], self.browser.requests[:]
        self.browser.complaints.clear()
        self.browser.requests.clear()
        self.assertEqual(complaints, [])
        self.assertEqual([url for url in urls if not url.startswith((self.live_server_url, "about:", "data:"))], [])
        super().tearDown()
