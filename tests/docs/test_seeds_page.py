"""Each line of the tables of from-the-seeds.md and from-a-celery-task.md leads to a test that there is."""

import re

from django.conf import settings
from django.test import SimpleTestCase

from inference.catalog import reader

DOCS = settings.BASE_DIR / "docs" / "guide"
PAGE = (DOCS / "from-the-seeds.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (?!there|advice)(.+) \|$", re.MULTILINE)
TARGET = re.compile(r'^\[([\w-]+)\]: (\S+) "(test_\w+)"$', re.MULTILINE)


class TablesTests(SimpleTestCase):
    def test_each_line_has_its_test(self) -> None:
        for name, least in (("from-the-seeds.md", 25), ("from-a-celery-task.md", 20)):
            text = (DOCS / name).read_text(encoding="utf-8")
            targets = {label for label, _, _ in TARGET.findall(text)}
            rows = [row.rpartition(" | ")[2] for row in ROW.findall(text)]
            self.assertGreater(len(rows), least)
            for row in rows:
                self.assertTrue(re.fullmatch(r"\[[^]]+\]\[[\w-]+\](, \[[^]]+\]\[[\w-]+\])*", row), row)
            linked = set(re.findall(r"\]\[([\w-]+)\]", text))
            self.assertEqual(linked, targets, name)

    def test_each_link_names_a_real_test(self) -> None:
        for name in ("from-the-seeds.md", "from-a-celery-task.md"):
            for _, path, test in TARGET.findall((DOCS / name).read_text(encoding="utf-8")):
                with self.subTest(test):
                    self.assertRegex((DOCS / path).read_text(encoding="utf-8"), rf"\n    def {test}\(")


class SeedsPageTests(SimpleTestCase):
    def test_its_model_is_one(self) -> None:
        (table,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
        spec = reader.parse_catalog(table)["fill"]
        self.assertEqual((spec.task, spec.parameters["top_k"].default), ("fill-mask", 1))

    def test_the_rows_of_service_streamer_s_own_table_can_be_measured(self) -> None:
        text = (DOCS.parent / "measurements" / "benchmarks.md").read_text(encoding="utf-8")
        section = text.partition("## service-streamer's own table")[2].partition("\n## ")[0]
        (names,) = re.findall(r"--only ([\w,-]+)", section)
        known = re.findall(
            r'^    "([\w-]+)": ', (settings.BASE_DIR / "benchmarks/systems.py").read_text(), re.MULTILINE
        )
        self.assertLessEqual(set(names.split(",")), set(known))
        for part in ("streamer-naive", "streamer-threads", "streamer-processes", "service-streamer", "service"):
            self.assertIn(part, names.split(","))
        self.assertIn('"--workers"', (settings.BASE_DIR / "benchmarks/__main__.py").read_text())
