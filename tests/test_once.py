import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import TestCase, mock

from tests import once
from tests.once import made_once


class MadeOnceTests(TestCase):
    def setUp(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.enterContext(mock.patch.dict(os.environ, {once.FOLDER: folder}))

    def test_of_many_who_need_it_one_makes_it(self) -> None:
        made: list[Path] = []

        def make(path: Path) -> None:
            made.append(path)
            path.write_text("made")

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: made_once("file", make), range(8)))
        self.assertEqual(([path.read_text() for path in found], len(made)), (["made"] * 8, 1))

    def test_what_could_not_be_made_is_made_by_the_next(self) -> None:
        def break_off(path: Path) -> None:
            path.mkdir()
            raise OSError("no network")

        self.assertRaises(OSError, made_once, "folder", break_off)
        self.assertEqual(list(made_once("folder", Path.mkdir).iterdir()), [])
