"""`manage.py remove_old_jobs`: what the workers do a little at a time, at once."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from inference.upkeep import retention


class Command(BaseCommand):
    help = "Remove finished jobs that are older than JOB_RETENTION_DAYS. Workers do this too, a little at a time."

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.JOB_RETENTION_DAYS:
            raise CommandError("JOB_RETENTION_DAYS is 0: jobs are kept for ever.")
        removed = 0
        while count := retention.remove_old():
            removed += count
        self.stdout.write(f"{removed} jobs removed")
