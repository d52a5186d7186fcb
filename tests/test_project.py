"""What a hosting platform, a package tool and a hook are told agrees with what is here."""

import re
import tomllib
from pathlib import Path

from django.conf import settings
from django.test import SimpleTestCase

ROOT = Path(settings.BASE_DIR)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


class TestProject(SimpleTestCase):
    def test_the_newest_version_of_the_changelog_is_that_of_the_project(self) -> None:
        newest = re.findall(r"^## (\S+),", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
        self.assertEqual(newest, PROJECT["version"])

    def test_the_license_is_there(self) -> None:
        (file,) = PROJECT["license-files"]
        self.assertIn("Redistribution and use in source and binary forms", (ROOT / file).read_text())
        self.assertEqual(PROJECT["license"], "BSD-3-Clause")

    def test_hosted_checks_run_what_a_checkout_runs_and_may_only_read(self) -> None:
        workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
        self.assertRegex(workflow, r"(?m)^      - run: \.ci/run$")
        self.assertRegex(workflow, r"(?m)^permissions:\n  contents: read\n\n")
        self.assertRegex(workflow, r"(?m)^    timeout-minutes: \d+$")
