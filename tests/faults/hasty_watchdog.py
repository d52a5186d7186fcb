"""`python -m tests.faults.hasty_watchdog -A project worker`: a worker whose watchdog waits for 10 s, not a minute."""

import os

import django


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
    from inference.worker import watchdog  # needs Django

    watchdog.STALLED_S = 10.0

    from celery.__main__ import main as celery

    celery()


if __name__ == "__main__":  # the pool's children import this module too
    main()
