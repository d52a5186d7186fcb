"""Three groups, made by a migration: may look, may act, may administer."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

from django.apps import apps
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.test import TestCase
from django.urls import reverse

from inference.models import Job, Status

migration = import_module("api.migrations.0002_groups")
LATER = [import_module(f"api.migrations.{name}") for name in ("0003_groups_see_acts", "0010_groups_see_file_batches")]
SEEN = [reverse(f"admin:inference_{name}_changelist") for name in ("job", "worker", "pausedmodel", "webhook", "act")]
SEEN += [reverse(f"admin:api_{name}_changelist") for name in ("filebatch", "storedfile")]
KEYS = reverse("admin:api_apikey_changelist")


class GroupTests(TestCase):
    def setUp(self) -> None:
        migration.make(apps, SimpleNamespace(connection=connection))
        for later in LATER:
            later.permit(apps, SimpleNamespace(connection=connection))

    def log_in(self, group: str) -> User:
        user = User.objects.create_user(group, is_staff=True)
        user.groups.add(Group.objects.get(name=group))
        self.client.force_login(user)
        return user

    def cancels(self) -> bool:
        job = Job.objects.create(model="embeddings", inputs="x")
        self.client.post(reverse("admin:inference_job_steer", args=[job.pk]), {"action": "cancel"})
        job.refresh_from_db()
        return job.status == Status.CANCELLED

    def test_each_sees_acts_and_administers_as_its_group_says(self) -> None:
        for group, acts, administers in (
            ("may look", False, False), ("may act", True, False), ("may administer", True, True),
        ):  # fmt: skip
            with self.subTest(group):
                user = self.log_in(group)
                self.assertEqual({self.client.get(page).status_code for page in SEEN}, {200})
                self.assertEqual(self.cancels(), acts)
                self.assertEqual(user.has_perm("api.change_filebatch"), acts)
                self.assertEqual(self.client.get(KEYS).status_code == 200, administers)
                self.assertEqual(user.has_perm("api.add_apikey"), administers)
                self.assertFalse(user.has_perm("auth.change_user"))  # who may make themselves a superuser

    def test_made_again_they_keep_what_they_were_given(self) -> None:
        group = Group.objects.get(name="may look")
        group.permissions.add(Permission.objects.get(codename="view_session"))
        migration.make(apps, SimpleNamespace(connection=connection))
        self.assertTrue(group.permissions.filter(codename="view_session").exists())
        self.assertEqual(Group.objects.count(), 3)
