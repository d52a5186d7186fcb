"""The command `manage.py remove_old_jobs`, which does at once what the workers do a little at a time."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from inference.figures import timeline_marks
from inference.telemetry.plurals import format_count
from inference.upkeep import retention


class Command(BaseCommand):
    help = "Remove jobs that ended more than JOB_RETENTION_DAYS ago. Workers do this too, a little at a time."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--force", action="store_true", help="Also where that is an unusual share of all finished jobs."
        )

    def handle(self, *args: Any, force: bool, **options: Any) -> None:
        if not settings.JOB_RETENTION_DAYS:
            raise CommandError("JOB_RETENTION_DAYS is 0: jobs are kept for ever.")
        sweep = retention.Sweep()
        if sweep.clock_warning and not force:
            raise CommandError(f"{sweep.clock_warning} If that clock is right, remove them with --force.")
        removed = 0
        while count := sweep.remove_chunk():
            removed += count
        timeline_marks.clear_retention_stop()
        self.stdout.write(f"{format_count(removed, 'job')} removed")
