"""Identity x operation: who may do what, as a table."""

from typing import Any
from uuid import uuid4

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission, User
from django.test import override_settings

from api.models import ApiKey
from inference.models import Bulk, Job
from tests.api.base import ApiTestCase, Response
from tests.conditions import ago

# Columns: nobody, owner, other, staff, operator (staff who may act), revoked, expired, inactive.
IDENTITIES = ("nobody", "owner", "other", "staff", "operator", "revoked", "expired", "inactive")
CLOSED = {"nobody": 401, "revoked": 401, "expired": 401, "inactive": 401}
ALL_KEYS = {**CLOSED, "owner": 200, "other": 200, "staff": 200, "operator": 200}
OWN = {**CLOSED, "owner": 200, "other": 404, "staff": 200, "operator": 200}
STEERED = {**OWN, "staff": 403}  # the jobs of others are for those who may act on them in the admin, too
OPEN = dict.fromkeys(IDENTITIES, 200)
TABLE = {
    ("GET", "/healthz"): OPEN,
    ("GET", "/v1/schema"): OPEN,
    ("GET", "/v1/docs"): OPEN,
    ("GET", "/v1/problems/queue_full"): OPEN,
    ("GET", "/v1/models"): ALL_KEYS,
    ("GET", "/v1/models/echo"): ALL_KEYS,
    ("GET", "/v1/jobs"): ALL_KEYS,
    ("GET", "/v1/jobs/{job}"): OWN,
    ("GET", "/v1/jobs/{job}/output"): {**OWN, "owner": 504, "staff": 504, "operator": 504},
    ("POST", "/v1/jobs/{job}/cancel"): STEERED,
    ("POST", "/v1/jobs/{job}/retry"): {**STEERED, "owner": 202, "operator": 202},
    ("GET", "/v1/jobs/bulk/{bulk}"): OWN,
    ("POST", "/v1/jobs/bulk/{bulk}/cancel"): STEERED,
    ("POST", "/v1/jobs/wait"): ALL_KEYS,
    ("POST", "/v1/jobs"): {**ALL_KEYS, "owner": 202, "other": 202, "staff": 202, "operator": 202},
    ("POST", "/v1/jobs/bulk"): {**ALL_KEYS, "owner": 202, "other": 202, "staff": 202, "operator": 202},
    ("POST", "/v1/models/echo"): {**ALL_KEYS, "owner": 503, "other": 503, "staff": 503, "operator": 503},
    ("GET", "/metrics"): {**CLOSED, "owner": 403, "other": 403, "staff": 200, "operator": 200},
}
BODIES = {
    "/v1/jobs": {"model": "echo", "inputs": "x"},
    "/v1/jobs/wait": {"ids": [str(uuid4())]},
    "/v1/jobs/bulk": {"model": "echo", "inputs": ["x"]},
    "/v1/models/echo": {"inputs": "x"},
}


@override_settings(API_KEY_REQUIRED=True)
class IdentityTests(ApiTestCase):
    def setUp(self) -> None:
        super().setUp()
        users = get_user_model().objects
        self.owner = users.create_user("owner")
        operator = users.create_user("operator", is_staff=True)
        operator.groups.add(Group.objects.get_or_create(name="may act")[0])
        operator.groups.get().permissions.add(Permission.objects.get(codename="change_job"))
        self.keys = {
            "owner": self.issue(self.owner),
            "other": self.issue(users.create_user("other")),
            "staff": self.issue(users.create_user("staff", is_staff=True)),
            "operator": self.issue(operator),
            "revoked": self.issue(self.owner, revoked_at=ago()),
            "expired": self.issue(self.owner, expires_at=ago(days=1)),
            "inactive": self.issue(users.create_user("inactive", is_active=False)),
        }

    def issue(self, owner: User, **fields: Any) -> str:
        return ApiKey.objects.issue_key(owner=owner, **fields)[1]

    def call(self, identity: str, method: str, path: str) -> Response:
        Job.objects.all().delete()
        job = Job.objects.create(model="echo", inputs="x", owner=self.owner)
        bulk = Bulk.objects.create(model="echo", total=0, owner=self.owner)
        headers = {"Authorization": f"Bearer {self.keys[identity]}"} if identity in self.keys else {}
        address = path.format(job=job.id, bulk=bulk.id)
        if method == "GET":
            return self.client.get(address, headers=headers)
        return self.post(address, BODIES.get(path), headers=headers)

    def test_exactly_the_table_holds(self) -> None:
        for (method, path), expected in TABLE.items():
            for identity in IDENTITIES:
                with self.subTest(f"{identity} {method} {path}"):
                    self.assertEqual(self.call(identity, method, path).status_code, expected[identity])

    def test_a_foreign_job_and_no_job_have_the_same_answer(self) -> None:
        job = Job.objects.create(model="echo", inputs="x", owner=self.owner)
        bulk = Bulk.objects.create(model="echo", total=0, owner=self.owner)
        headers = {"Authorization": f"Bearer {self.keys['other']}"}
        for path, foreign in (("/v1/jobs/{}", job.id), ("/v1/jobs/{}/output", job.id), ("/v1/jobs/bulk/{}", bulk.id)):
            with self.subTest(path):
                answers = []
                for key in (foreign, uuid4()):
                    answer = self.client.get(path.format(key), headers={**headers, "X-Request-Id": "same"})
                    answers.append((answer.status_code, answer.content.decode().replace(str(key), "ID")))
                self.assertEqual(*answers)

    def test_a_list_shows_own_jobs_and_staff_see_all(self) -> None:
        Job.objects.create(model="echo", inputs="x", owner=self.owner)
        Job.objects.create(model="echo", inputs="x")
        for identity, count in (("owner", 1), ("other", 0), ("staff", 2)):
            with self.subTest(identity):
                headers = {"Authorization": f"Bearer {self.keys[identity]}"}
                self.assertEqual(len(self.client.get("/v1/jobs", headers=headers).json()["items"]), count)

    @override_settings(API_KEY_REQUIRED=False)
    def test_jobs_of_a_user_who_was_deleted_stay_hidden_without_a_key(self) -> None:
        job = Job.objects.create(model="echo", inputs="x", owner=self.owner)
        bulk = Bulk.objects.create(model="echo", total=0, owner=self.owner)
        self.owner.delete()
        self.assertEqual(self.client.get("/v1/jobs").json()["items"], [])
        for path in (f"/v1/jobs/{job.id}", f"/v1/jobs/{job.id}/output", f"/v1/jobs/bulk/{bulk.id}"):
            with self.subTest(path):
                self.assertEqual(self.client.get(path).status_code, 404)
        staff = {"Authorization": f"Bearer {self.keys['staff']}"}
        self.assertEqual(self.client.get(f"/v1/jobs/{job.id}", headers=staff).status_code, 200)

    @override_settings(API_KEY_REQUIRED=False)
    def test_without_keys_jobs_that_have_an_owner_stay_hidden(self) -> None:
        job = Job.objects.create(model="echo", inputs="x", owner=self.owner)
        self.assertEqual(self.client.get(f"/v1/jobs/{job.id}").status_code, 404)
