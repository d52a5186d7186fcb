"""Starts a program of the tests: its modules need Django, which is set up first."""

import importlib
import os

import django


def run(module: str) -> int:
    """Run `main` of a module, and return its exit status."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
    status: int = importlib.import_module(module).main()
    return status
