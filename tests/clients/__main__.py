"""`python -m tests.clients`: writes docs/clients.md. The clients are installed into environments of their own."""

import os
import sys

import django


def main() -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
    from tests.clients import command  # needs Django

    return command.main()


if __name__ == "__main__":
    sys.exit(main())
