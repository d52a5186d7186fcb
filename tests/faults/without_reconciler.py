"""`python -m tests.faults.without_reconciler -A project worker`: a worker that finds nothing again. The oracle must
see it."""

import os

import django


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
    from inference.upkeep import reconcile  # needs Django

    reconcile.reconcile = lambda **_: None

    from celery.__main__ import main as celery

    celery()


if __name__ == "__main__":  # the pool's children import this module too
    main()
