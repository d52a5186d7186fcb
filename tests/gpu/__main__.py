"""`python -m tests.gpu`: checks the service on this host's GPU; with `--stand-in`, the check itself on a CPU."""

import os
import sys

import django


def main() -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
    from tests.gpu import command  # needs Django

    return command.main()


if __name__ == "__main__":
    sys.exit(main())
