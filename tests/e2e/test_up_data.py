"""`manage.py up` on a data folder of another day: it serves, or says in one sentence what to do.

All that may be found there: tests/inference/broker/test_embedded_data_folder.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import TestCase

from django.test import tag

from tests.conditions import PATIENCE_S
from tests.e2e.test_up import Up
from tests.inference.broker.test_embedded_data_folder import BASE, WRITTEN_BY, mount_small_disk
from tests.ports import free_port
from tests.second_look import TAG

ECHO = '[echo]\nengine = "tests.echo:EchoEngine"\n'


@tag(TAG)
class TestData(TestCase):
    def setUp(self) -> None:
        root = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="up-data-")))
        self.models, self.folder = root / "models.toml", root / "var"
        self.models.write_text(ECHO)
        self.folder.mkdir()

    def up(self) -> Up:
        return Up(free_port(), self.models, data=self.folder)

    def written_by(self, server: str) -> Path:
        return Path(shutil.copytree(WRITTEN_BY / server, self.folder / "broker", dirs_exist_ok=True))

    def test_it_serves_on_what_another_server_wrote(self) -> None:
        self.written_by("redis-6.2")
        with self.up() as up:
            up.shows("A request, and the answer it got")

    def test_it_serves_on_what_cannot_be_read_and_says_where_that_is_kept(self) -> None:
        base = self.written_by("valkey-9") / BASE
        base.write_bytes(base.read_bytes().replace(b"VALKEY080", b"VALKEY099"))
        with self.up() as up:
            up.shows("A request, and the answer it got")
            up.shows("set aside")

    @unittest.skipUnless(os.geteuid() == 0, "only root may mount a small disk")
    def test_a_full_or_read_only_folder_is_named_with_the_way_out(self) -> None:
        mount_small_disk(self, self.folder, "20m")
        with self.up() as up:
            up.shows("A request, and the answer it got")
        (self.folder / "ballast").write_bytes(bytes(shutil.disk_usage(self.folder).free))
        self.assert_refused(f"DATA_DIR {self.folder} cannot be written: No space left on device. Free some space")
        (self.folder / "ballast").unlink()
        subprocess.run(["mount", "-o", "remount,ro", self.folder], check=True)
        self.assert_refused(f"DATA_DIR {self.folder} cannot be written: Read-only file system.")

    def assert_refused(self, sentence: str) -> None:
        with self.up() as up:
            self.assertEqual(up.process.wait(PATIENCE_S), 1)
            up.reader.join()
            self.assertIn(sentence, up.output)
            self.assertNotIn("Traceback", up.output)
