"""A PostgreSQL whose statements each take nearly as long as they may: their sum is bounded too."""

from __future__ import annotations

import datetime
import unittest
from typing import Any
from uuid import uuid4

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import tag
from django.utils import timezone

from api.models import ApiKey
from tests import databases
from tests.conditions import eventually
from tests.faults.database import locked
from tests.faults.proxy import Mode, Proxy
from tests.ports import HOST
from tests.second_look import TAG
from tests.stack import ECHO, Stack

DAY = datetime.timedelta(days=1)  # that a session is valid for, from now
EACH_WAY_S = 1.3  # twice for a statement, which may take 4: two of them are too many
JOB = {"model": "echo", "inputs": "x"}


@tag(TAG)
class SlowDatabase(unittest.TestCase):
    proxy: Proxy
    stack: Stack
    owner: User

    @classmethod
    def setUpClass(cls) -> None:
        server = cls.enterClassContext(databases.postgres())
        cls.proxy = cls.enterClassContext(Proxy())
        cls.proxy.target, cls.proxy.slow_s = server.folder / ".s.PGSQL.5432", EACH_WAY_S
        environment = {
            "DATABASE_URL": f"postgres://inference@{HOST}:{cls.proxy.port}/postgres",
            "DATABASE_POOL_SIZE": "4", "API_KEY_REQUIRED": "1", "SECRET_KEY": settings.SECRET_KEY,
        }  # fmt: skip
        cls.stack = cls.enterClassContext(Stack(models=ECHO, workers=0, environment=environment))
        cls.owner = get_user_model().objects.db_manager(cls.stack.alias).create_superuser("owner")

    def test_a_list(self) -> None:
        self.assert_answered("GET", "/v1/jobs")

    def test_a_job(self) -> None:
        self.assert_answered("GET", f"/v1/jobs/{uuid4()}?wait=1")

    def test_a_submission(self) -> None:
        self.assert_answered("POST", "/v1/jobs", JOB, **{"Idempotency-Key": str(uuid4())})

    def test_a_blocking_call(self) -> None:
        self.assert_answered("POST", "/v1/models/echo?timeout=1", {"inputs": "x"})

    def test_a_bulk(self) -> None:
        self.assert_answered("POST", "/v1/jobs/bulk", {"model": "echo", "inputs": ["x"]})

    def test_a_page_of_the_admin(self) -> None:
        self.assert_answered("GET", "/admin/inference/job/", Cookie=f"sessionid={self.session()}")

    def session(self) -> str:
        user = {SESSION_KEY: str(self.owner.pk), HASH_SESSION_KEY: self.owner.get_session_auth_hash()}
        data = SessionStore().encode({**user, BACKEND_SESSION_KEY: settings.AUTHENTICATION_BACKENDS[0]})
        sessions = Session.objects.using(self.stack.alias)
        expires_at = timezone.now() + DAY  # the service judges it by its own clock
        return sessions.create(session_key=uuid4().hex, session_data=data, expire_date=expires_at).pk

    def headers(self) -> dict[str, str]:
        """With a key that the service has not seen, so that it is looked up too."""
        return {"Authorization": f"Bearer {ApiKey.objects.db_manager(self.stack.alias).issue_key(owner=self.owner)[1]}"}

    def serves(self) -> bool:
        return self.stack.get("/v1/jobs", headers=self.headers()).status == 200

    def assert_answered(self, method: str, path: str, body: Any = None, **headers: str) -> None:
        eventually(self.serves, "the database answers")
        headers = {**self.headers(), **headers}
        with self.proxy.failing(Mode.SLOW):
            answer = self.stack.request(method, path, body, headers=headers)
        self.assertEqual(answer.status, 503)


@unittest.skipUnless(connection.vendor == "sqlite", "who waits for other locks waits for a statement")
@tag(TAG)
class LockedFile(unittest.TestCase):
    def test_requests_that_write_once_and_twice_are_answered_before_it_is_free(self) -> None:
        with Stack(models=ECHO, workers=0) as stack:
            job_id = stack.submit("x")
            owner = get_user_model().objects.db_manager(stack.alias).create_superuser("owner")
            for path, body in (("/v1/jobs", JOB), (f"/v1/jobs/{job_id}/cancel", None)):
                headers = {
                    "Authorization": f"Bearer {ApiKey.objects.db_manager(stack.alias).issue_key(owner=owner)[1]}"
                }
                with locked(stack):
                    answer = stack.request("POST", path, body, headers=headers)
                self.assertEqual(answer.status, 503)
