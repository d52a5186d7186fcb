"""Who used which key how much: counted in memory, told in the admin, and never in anybody's way."""

from __future__ import annotations

import datetime
from unittest.mock import patch

from django.contrib.auth import get_user_model
from django.db import OperationalError
from django.test import TestCase
from django.urls import reverse
from django.utils import timezone

from api import key_usage
from api.auth import KeyCache
from api.key_usage import UsageCounter
from api.models import ApiKey, KeyUse
from inference import clock
from tests.conditions import ago

KEYS = reverse("admin:api_apikey_changelist")


class UsageTests(TestCase):
    def setUp(self) -> None:
        self.owner = get_user_model().objects.create_superuser("owner")
        self.key, self.secret = ApiKey.objects.issue_key(owner=self.owner, name="first")
        self.other = ApiKey.objects.issue_key(owner=self.owner, name="second")[0]
        self.usage = UsageCounter()
        self.enterContext(patch.object(key_usage, "EVERY_S", 0.0))

    def used(self) -> dict[int, int]:
        return dict(KeyUse.objects.values_list("key", "requests"))

    def test_each_request_with_a_key_counts(self) -> None:
        keys = KeyCache(self.usage)
        for _ in range(3):
            keys.find_principal(self.secret)
        self.usage.write_if_due()
        self.assertEqual(self.used(), {self.key.pk: 3})

    def test_processes_add_up(self) -> None:
        for writer in (UsageCounter(), UsageCounter()):
            for _ in range(5):
                writer.count_request(self.key.pk)
            writer.write_if_due()
            writer.write_if_due()
        self.assertEqual(self.used(), {self.key.pk: 10})

    def test_the_clock_of_a_host_removes_nothing(self) -> None:
        hour = ago().replace(minute=0, second=0, microsecond=0)
        KeyUse.objects.create(key=self.key, hour=hour, requests=7)
        real = timezone.now
        self.usage.count_request(self.other.pk)
        with patch.object(timezone, "now", lambda: real() + 2 * key_usage.KEPT):
            self.usage.write_if_due()
        self.assertEqual(self.used()[self.key.pk], 7)

    def test_a_round_is_bounded_and_loses_nobody(self) -> None:
        self.usage.count_request(self.key.pk)
        self.usage.count_request(self.other.pk)
        with patch.object(key_usage, "MOST", 1):
            self.usage.write_if_due()
            self.assertEqual(len(self.used()), 1)
            self.usage.write_if_due()
        self.assertEqual(self.used(), {self.key.pk: 1, self.other.pk: 1})

    def test_a_database_that_is_away_and_a_key_that_is_gone_keep_nobody_out(self) -> None:
        self.usage.count_request(self.key.pk)
        with (
            patch.object(UsageCounter, "write_counts", side_effect=OperationalError),
            self.assertLogs("api.key_usage", "WARNING"),
        ):
            self.usage.write_if_due()
        self.usage.count_request(987_654)
        self.usage.write_if_due()
        self.assertEqual(self.used(), {})

    def test_rows_are_kept_for_a_month(self) -> None:
        old = ago() - key_usage.KEPT - datetime.timedelta(hours=2)
        KeyUse.objects.create(key=self.key, hour=old, requests=9)
        self.usage.count_request(self.key.pk)
        self.usage.write_if_due()
        self.assertEqual(self.used(), {self.key.pk: 1})

    def test_the_admin_shows_requests_rate_and_share(self) -> None:
        now = ago().replace(minute=0, second=0, microsecond=0)
        KeyUse.objects.create(key=self.key, hour=now, requests=1200)
        KeyUse.objects.create(key=self.key, hour=now - datetime.timedelta(hours=20), requests=1800)
        KeyUse.objects.create(key=self.key, hour=now - datetime.timedelta(hours=30), requests=9000)
        KeyUse.objects.create(key=self.other, hour=now, requests=1000)
        ApiKey.objects.filter(pk=self.key.pk).update(requests_per_minute=60)
        self.client.force_login(self.owner)
        with patch.object(clock, "get_database_time", return_value=now + datetime.timedelta(seconds=1)):
            page = self.client.get(KEYS).content.decode()
        for figure in ("3,000", "75.0%", "20.0 of 60", "25.0%", "no limit"):
            self.assertIn(figure, page)
        shown = self.client.get(reverse("admin:api_apikey_change", args=[self.key.pk])).content.decode()
        self.assertIn("3,000 requests; a column is an hour", shown)
        self.assertNotIn("a column is an hour", self.client.get(reverse("admin:api_apikey_add")).content.decode())

    def test_a_list_without_use(self) -> None:
        self.client.force_login(self.owner)
        self.assertEqual(self.client.get(KEYS).status_code, 200)
