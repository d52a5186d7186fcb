from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.test import TestCase

from inference.models import Job, ensure_former_user


class FormerUserTests(TestCase):
    def test_it_cannot_be_deleted(self) -> None:
        user = ensure_former_user()
        Job.objects.create(model="echo", inputs="x", owner=user)
        with self.assertRaisesMessage(PermissionDenied, "cannot be deleted"):
            user.delete()

    def test_an_account_that_had_the_name_can_log_in_no_longer(self) -> None:
        users = get_user_model().objects
        users.create_user("former-user")
        users.create_user("ada").delete()
        self.assertTrue(ensure_former_user())
        self.assertFalse(users.get(username="former-user").is_active)
