"""The objects that requests share are made without a thread, and made anew in a process that was forked."""

import subprocess
import sys
from unittest import TestCase

from django.conf import settings

SETUP = """
import os, threading

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
import django

django.setup()
import project.urls
from inference import process_resources
"""
THREADS = "print(*(thread.name for thread in threading.enumerate()))"
FORK = """
before = process_resources.current
child = os.fork()
if not child:
    os._exit(process_resources.current is before)
print(os.waitpid(child, 0)[1])
"""


class ProcessTests(TestCase):
    def run_program(self, text: str) -> str:
        command = [sys.executable, "-c", SETUP + text]
        return subprocess.run(command, cwd=settings.BASE_DIR, capture_output=True, text=True, check=True).stdout.strip()

    def test_no_thread_is_started_by_an_import(self) -> None:
        self.assertEqual(self.run_program(THREADS), "MainThread")

    def test_a_forked_process_has_objects_of_its_own(self) -> None:
        self.assertEqual(self.run_program(FORK), "0")
