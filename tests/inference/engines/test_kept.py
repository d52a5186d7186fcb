"""Files that are made of a model once: whole or not at all, by one process, and made anew where they are damaged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import TestCase, skipIf
from unittest.mock import patch

from inference.engines.compiled import kept

# Says that it has begun, and never ends: a process to kill in the middle.
MAKER = """
import sys, time
from pathlib import Path
from inference.engines.compiled import kept

def make(folder):
    (folder / "weights").write_text("half")
    print("begun", flush=True)
    time.sleep(600)

kept.folder([Path(sys.argv[1])], "model", make)
"""


class KeptTests(TestCase):
    def setUp(self) -> None:
        self.home = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.made = 0

    def make(self, folder: Path) -> None:
        self.made += 1
        (folder / "weights").write_text("whole")

    def kept(self, *homes: Path) -> str:
        return (kept.folder(homes or [self.home], "model", self.make) / "weights").read_text()

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
            kept.folder([self.home], "model", fail)
        self.assertEqual([path.name for path in self.home.iterdir()], ["model.lock"])
        self.assertEqual(self.kept(), "whole")

    def test_one_makes_it_and_the_others_wait(self) -> None:
        begun, go_on = threading.Event(), threading.Event()

        def slow(folder: Path) -> None:
            begun.set()
            self.assertTrue(go_on.wait(60))
            self.make(folder)

        with ThreadPoolExecutor(3) as threads:
            first = threads.submit(kept.folder, [self.home], "model", slow)
            self.assertTrue(begun.wait(60))
            others = [threads.submit(self.kept) for _ in range(2)]
            go_on.set()
            self.assertEqual([other.result(60) for other in others], ["whole", "whole"])
            self.assertEqual(first.result(60), self.home / "model")
        self.assertEqual(self.made, 1)

    def test_who_waits_does_so_for_a_limited_time(self) -> None:
        def late(folder: Path) -> None:
            with patch.object(kept, "WAIT_S", 0.0), self.assertRaisesRegex(OSError, "another process"):
                self.kept()
            self.make(folder)

        kept.folder([self.home], "model", late)
        self.assertEqual(self.made, 1)

    def test_a_process_that_is_killed_in_the_middle_hinders_nobody(self) -> None:
        maker = subprocess.Popen([sys.executable, "-c", MAKER, self.home], stdout=subprocess.PIPE)
        self.addCleanup(maker.communicate)
        self.addCleanup(maker.kill)
        assert maker.stdout
        self.assertEqual(maker.stdout.readline(), b"begun\n")
        maker.send_signal(signal.SIGKILL)
        maker.wait(60)
        self.assertEqual(self.kept(), "whole")
        self.assertEqual(sorted(path.name for path in self.home.iterdir()), ["model", "model.lock"])

    def test_it_is_made_where_it_may_be(self) -> None:
        nowhere, data = self.home / "file" / "exported", self.home / "data" / "exported"
        (self.home / "file").touch()
        self.assertEqual(kept.folder([nowhere, data], "model", self.make), data / "model")

    @skipIf(os.geteuid() == 0, "root may write anywhere")
    def test_it_is_made_in_the_second_folder_where_the_first_is_read_only(self) -> None:
        first, second = self.home / "first", self.home / "second"
        first.mkdir(mode=0o500)
        self.assertEqual(kept.folder([first, second], "model", self.make), second / "model")

    def test_what_is_there_is_found_in_any(self) -> None:
        first, second = self.home / "first", self.home / "second"
        kept.folder([second], "model", self.make)
        self.assertEqual(kept.folder([first, second], "model", self.make), second / "model")
        self.assertEqual(self.made, 1)
