"""`python -m tests.faults`: plays the faults of the matrix against the running service."""

import os
import sys

import django


def main() -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
    from tests.faults import command  # needs Django

    return command.main()


if __name__ == "__main__":
    sys.exit(main())
