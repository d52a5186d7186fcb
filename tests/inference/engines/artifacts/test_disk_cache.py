"""Files that are made of a model once: whole or not at all, by one process, and made anew where they are damaged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import TestCase, skipIf
from unittest.mock import patch

from inference.engines.artifacts import disk_cache
from tests.conditions import PATIENCE_S

# Says that it has begun, and never ends: a process to kill in the middle.
MAKER = """
import sys, time
from pathlib import Path
from inference.engines.artifacts import disk_cache

def make(folder):
    (folder / "weights").write_text("half")
    print("begun", flush=True)
    time.sleep(3600)  # until it is killed

disk_cache.open_cached_folder([Path(sys.argv[1])], "model", make)
"""


class KeptCase(TestCase):
    def setUp(self) -> None:
        self.home = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.made = 0

    def make(self, folder: Path) -> None:
        self.made += 1
        (folder / "weights").write_text("whole")

    def kept(self, *homes: Path) -> str:
        return (self.folder(*homes) / "weights").read_text()

    def folder(self, *homes: Path, name: str = "model", make: Callable[[Path], None] | None = None) -> Path:
        """Let go at once."""
        found = disk_cache.open_cached_folder(homes or [self.home], name, make or self.make)
        found.sums.close()
        return found.path


class KeptTests(KeptCase):
    def test_it_is_made_once(self) -> None:
        self.assertEqual([self.kept(), self.kept(), self.made], ["whole", "whole", 1])

    def test_what_is_damaged_is_made_anew(self) -> None:
        for damage in (b"who", b"whale", None):
            self.kept()
            file = self.home / "model" / "weights"
            file.unlink() if damage is None else file.write_bytes(damage)
            self.assertEqual(self.kept(), "whole")
        self.assertEqual(self.made, 4)

    def test_what_fails_leaves_nothing(self) -> None:
        def fail(folder: Path) -> None:
            self.make(folder)
            raise OSError(28, "No space left on device")

        with self.assertRaises(OSError):
            self.folder(make=fail)
        self.assertEqual([path.name for path in self.home.iterdir()], ["model.lock"])
        self.assertEqual(self.kept(), "whole")

    def test_one_makes_it_and_the_others_wait(self) -> None:
        begun, go_on = threading.Event(), threading.Event()

        def slow(folder: Path) -> None:
            begun.set()
            self.assertTrue(go_on.wait(PATIENCE_S))
            self.make(folder)

        with ThreadPoolExecutor(3) as threads:
            first = threads.submit(self.folder, make=slow)
            self.assertTrue(begun.wait(PATIENCE_S))
            others = [threads.submit(self.kept) for _ in range(2)]
            go_on.set()
            self.assertEqual([other.result(PATIENCE_S) for other in others], ["whole", "whole"])
            self.assertEqual(first.result(PATIENCE_S), self.home / "model")
        self.assertEqual(self.made, 1)

    def test_who_waits_does_so_for_a_limited_time(self) -> None:
        def late(folder: Path) -> None:
            with patch.object(disk_cache, "WAIT_S", 0.0), self.assertRaisesRegex(OSError, "another process"):
                self.kept()
            self.make(folder)

        self.folder(make=late)
        self.assertEqual(self.made, 1)

    def test_a_process_that_is_killed_in_the_middle_hinders_nobody(self) -> None:
        maker = subprocess.Popen([sys.executable, "-c", MAKER, self.home], stdout=subprocess.PIPE)
        self.addCleanup(maker.communicate)
        self.addCleanup(maker.kill)
        assert maker.stdout
        self.assertEqual(maker.stdout.readline(), b"begun\n")
        maker.send_signal(signal.SIGKILL)
        maker.wait(PATIENCE_S)
        self.assertEqual(self.kept(), "whole")
        self.assertEqual(sorted(path.name for path in self.home.iterdir()), ["model", "model.lock"])

    def test_it_is_made_where_it_may_be(self) -> None:
        nowhere, data = self.home / "file" / "exported", self.home / "data" / "exported"
        (self.home / "file").touch()
        self.assertEqual(self.folder(nowhere, data), data / "model")

    @skipIf(os.geteuid() == 0, "root may write anywhere")
    def test_it_is_made_in_the_second_folder_where_the_first_is_read_only(self) -> None:
        first, second = self.home / "first", self.home / "second"
        first.mkdir(mode=0o500)
        self.assertEqual(self.folder(first, second), second / "model")

    def test_what_is_there_is_found_in_any(self) -> None:
        first, second = self.home / "first", self.home / "second"
        self.folder(second)
        self.assertEqual(self.folder(first, second), second / "model")
        self.assertEqual(self.made, 1)


class IdleTests(KeptCase):
    """What nobody loads any more."""

    def age(self, *names: str) -> None:
        """To be of so long ago that they are removed."""
        long_ago = time.time() - disk_cache.IDLE_S - 60  # by the clock that the files have
        for path in (self.home / name for name in names):
            for file in (path, path / disk_cache.SUMS):
                if file.exists():
                    os.utime(file, (long_ago, long_ago))

    def names(self) -> list[str]:
        return sorted(path.name for path in self.home.iterdir() if path.is_dir())

    def test_what_nobody_has_loaded_for_long_goes_when_another_is_made(self) -> None:
        for name in ("old", "young"):
            self.folder(name=name)
        self.age("old")
        self.folder(name="young")
        self.assertEqual(self.names(), ["old", "young"])
        self.folder(name="new")
        self.assertEqual(self.names(), ["new", "young"])
        self.folder(name="old")
        self.assertEqual(self.made, 4)

    def test_what_is_loaded_stays(self) -> None:
        self.folder(name="old")
        self.age("old")
        self.folder(name="old")
        self.folder(name="new")
        self.assertEqual(self.names(), ["new", "old"])

    def test_what_a_process_uses_stays(self) -> None:
        used = [disk_cache.open_cached_folder([self.home], "used", self.make) for _ in range(2)]
        self.age("used")
        self.folder(name="new")
        used[0].sums.close()
        self.folder(name="newer")
        self.assertEqual(self.names(), ["new", "newer", "used"])
        used[1].sums.close()
        self.folder(name="newest")
        self.assertEqual(self.names(), ["new", "newer", "newest"])

    def test_what_is_damaged_is_made_anew_while_others_use_it(self) -> None:
        used = disk_cache.open_cached_folder([self.home], "model", self.make)
        self.addCleanup(used.sums.close)
        (used.path / "weights").write_text("who")
        self.assertEqual(self.kept(), "whole")

    def test_what_was_not_made_to_its_end_goes_and_what_is_being_made_stays(self) -> None:
        (self.home / "killed.part-1").mkdir()
        self.age("killed.part-1")

        def slow(folder: Path) -> None:
            self.make(folder)
            self.age(folder.name)
            self.folder(name="new")

        self.folder(name="slow", make=slow)
        self.assertEqual(self.names(), ["new", "slow"])

    def test_one_that_another_user_has_made_is_used(self) -> None:
        self.folder()
        with patch.object(os, "utime", side_effect=PermissionError):
            self.folder()
        self.assertEqual(self.made, 1)
