"""The figures that README.md shows are those of the published run."""

from __future__ import annotations

import json
import re

from django.conf import settings
from django.test import SimpleTestCase

FIGURES = re.compile(r"<!-- figures: .* -->\n(.+?)<!-- end of figures -->", re.DOTALL)


class BenchmarksPageTests(SimpleTestCase):
    def test_readme_shows_figures_of_the_published_run(self) -> None:
        pages = [settings.BASE_DIR / "README.md", settings.BASE_DIR / "docs" / "measurements" / "benchmarks.md"]
        [summary], [figures] = (FIGURES.findall(page.read_text()) for page in pages)
        self.assertTrue(figures.startswith(summary))
        figures = settings.BASE_DIR / "docs" / "measurements" / "benchmarks.json"
        for value in json.loads(figures.read_text())["machine"].values():
            self.assertIn(value, summary)
