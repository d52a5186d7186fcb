"""The command `manage.py check`, which ends with status 1 for warnings too, such as for a task that does not exist."""

from django.core.management.base import CommandParser
from django.core.management.commands import check


class Command(check.Command):
    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.set_defaults(fail_level="WARNING")
