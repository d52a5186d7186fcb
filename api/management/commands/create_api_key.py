"""The command `manage.py create_api_key ada`, which prints a new key, once."""

from __future__ import annotations

import datetime
from argparse import ArgumentParser
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError

from api.models import ApiKey
from inference import clock
from inference.fields.json_field import escape_for_database

MOST_DAYS = 36_500
MOST = 2**31 - 1  # the largest number that the columns hold


class Command(BaseCommand):
    help = "Make an API key and print it: it is shown this once. The owner is made when there is no such user."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("owner", help="user name of its owner")
        parser.add_argument("--name", default="", help="what the key is for")
        parser.add_argument("--days", type=float, help="it expires after so many days (default: never)")
        parser.add_argument("--rate", type=int, help="requests a minute (default: API_KEY_RATE)")
        parser.add_argument("--max-queued", type=int, help="jobs that may wait (default: API_KEY_MAX_QUEUED)")
        parser.add_argument("--no-high", action="store_true", help="its jobs may not have the priority high")
        parser.add_argument("--staff", action="store_true", help="make the owner staff: its keys see everybody's jobs")

    def handle(self, *args: Any, **options: Any) -> None:
        for name, most in (("days", MOST_DAYS), ("rate", MOST), ("max_queued", MOST)):
            if options[name] is not None and not 0 < options[name] <= most:
                option = name.replace("_", "-")
                raise CommandError(f"--{option} must be above 0 and at most {most:,}, not {options[name]}.")
        days = options["days"]
        row, key = ApiKey.objects.issue_key(
            owner=self.get_or_create_owner(options["owner"], options["staff"]),
            name=options["name"][:100],
            expires_at=clock.get_database_time() + datetime.timedelta(days=days) if days else None,
            requests_per_minute=options["rate"],
            max_queued=options["max_queued"],
            may_use_high=not options["no_high"],
        )
        self.stderr.write(f"A key of {row.owner}; it is not shown again. Send it as Authorization: Bearer KEY.")
        self.stdout.write(key)

    def get_or_create_owner(self, name: str, staff: bool) -> Any:
        users = get_user_model()
        longest = getattr(users._meta.get_field(users.USERNAME_FIELD), "max_length", None) or MOST
        if not name.strip() or len(name) > longest or escape_for_database(name) != name:
            raise CommandError(f"A user's name has 1 to {longest} characters that can be read, not {name[:50]!r}.")
        user = users.objects.filter(**{users.USERNAME_FIELD: name}).first()
        if user is None:
            user = users.objects.create_user(name)
            self.stderr.write(f"Created the user {name} without a password.")
        if staff and not user.is_staff:
            user.is_staff = True
            user.save(update_fields=["is_staff"])
        return user
