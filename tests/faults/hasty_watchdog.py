"""`python -m tests.faults.hasty_watchdog -A project worker`: a worker whose watchdog waits for 20 s, not a minute."""

import os

import django


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
    from inference.worker.maintenance import watchdog  # needs Django

    watchdog.STALLED_S = 20.0  # longer than the pauses between tries to connect of the first minute

    from celery.__main__ import main as celery

    celery()


if __name__ == "__main__":  # the pool's children import this module too
    main()
