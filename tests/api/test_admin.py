"""Who may do what with keys in the admin: nobody gives, takes or closes more than they have."""

from __future__ import annotations

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission, User
from django.test import TestCase
from django.urls import reverse

from api.models import ApiKey
from tests.conditions import ago

KEYS = reverse("admin:api_apikey_changelist")
ADD = reverse("admin:api_apikey_add")


class KeyAdminTests(TestCase):
    def setUp(self) -> None:
        users = get_user_model().objects
        self.root, self.clerk = users.create_superuser("root"), users.create_user("clerk", is_staff=True)
        self.colleague, self.client_user = users.create_user("colleague", is_staff=True), users.create_user("customer")
        self.client.force_login(self.clerk)

    def permit(self, *names: str) -> None:
        self.clerk.user_permissions.set(Permission.objects.filter(codename__in=names))

    def add(self, owner: User) -> bool:
        self.client.post(ADD, {"owner": owner.pk, "name": "new"})
        return ApiKey.objects.filter(owner=owner).exists()

    def revoke(self, *owners: User) -> list[bool]:
        keys = [ApiKey.objects.issue_key(owner=owner)[0] for owner in owners]
        self.client.post(KEYS, {"action": "revoke", "_selected_action": [key.pk for key in keys]})
        return [ApiKey.objects.get(pk=key.pk).revoked_at is not None for key in keys]

    def test_each_key_is_shown_with_its_state_and_its_times_with_their_zone(self) -> None:
        for name, fields in (("valid", {}), ("expired", {"expires_at": ago(60)}), ("revoked", {"revoked_at": ago(60)})):
            ApiKey.objects.create(owner=self.client_user, name=name, digest=name, last_used_at=ago(30), **fields)
        self.client.force_login(self.root)
        page = self.client.get(KEYS).content.decode()
        for shown in ("<h1>API keys</h1>", "badge-valid", "badge-expired", "badge-revoked", "+00:00"):
            self.assertIn(shown, page)
        self.assertRegex(page, r"\d+ s ago</span>")
        self.assertContains(self.client.get(ADD), "In UTC. If empty, the key does not expire.")

    def test_who_may_only_look_cannot_revoke(self) -> None:
        self.permit("view_apikey")
        self.assertEqual(self.revoke(self.client_user), [False])

    def test_who_may_change_revokes_keys_of_those_below_only(self) -> None:
        self.permit("view_apikey", "change_apikey")
        self.assertEqual(self.revoke(self.client_user, self.root, self.colleague), [True, False, False])

    def test_who_may_add_makes_no_key_that_opens_more_than_its_maker_may_see(self) -> None:
        self.permit("add_apikey", "view_apikey")
        made = [self.add(owner) for owner in (self.client_user, self.root, self.colleague, self.clerk)]
        self.assertEqual(made, [True, False, False, False])
        self.permit("add_apikey", "view_apikey", "view_job")
        self.assertTrue(self.add(self.clerk))

    def test_who_may_change_or_delete_touches_no_key_of_those_above(self) -> None:
        self.permit("view_apikey", "change_apikey", "delete_apikey")
        for owner, status in ((self.client_user, 302), (self.root, 403)):
            with self.subTest(owner):
                key = ApiKey.objects.issue_key(owner=owner)[0]
                change, delete = (reverse(f"admin:api_apikey_{what}", args=[key.pk]) for what in ("change", "delete"))
                self.assertEqual(self.client.post(change, {"name": "other"}).status_code, status)
                self.assertEqual(self.client.post(delete, {"post": "yes"}).status_code, status)

    def test_a_superuser_may_all(self) -> None:
        self.client.force_login(self.root)
        self.assertTrue(all(self.add(owner) for owner in (self.root, self.colleague)))
        self.assertEqual(self.revoke(self.root, self.colleague), [True, True])
