"""The pages lead somewhere: every link has its file and heading, and the index has every page."""

import re
from pathlib import Path

from django.conf import settings
from django.test import SimpleTestCase

ROOT = Path(settings.BASE_DIR)
DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"
FILES = [file for file in DOCS.glob("[!._]*/**/*") if file.is_file()]  # not those of docs/.venv and docs/_site
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("examples/*.md"), INDEX, *(file for file in FILES if file.suffix == ".md")]
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://)([^)#]*)(?:#([^)]*))?\)")


def prose(page: Path) -> str:
    return CODE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[tuple[Path, str]]:
    """Files and anchors that it leads to."""
    return [((page.parent / file).resolve() if file else page, anchor) for file, anchor in LINK.findall(prose(page))]


class TestLinks(SimpleTestCase):
    def test_every_link_has_its_file_and_its_heading(self) -> None:
        for page in PAGES:
            for file, anchor in links(page):
                self.assertTrue(file.exists(), f"{page.name} links to {file}")
                if anchor:
                    self.assertIn(anchor, anchors(file), f"{page.name} links to {file.name}")

    def test_the_index_has_every_page(self) -> None:
        listed = {file for file, _ in links(INDEX)}
        self.assertEqual(set(PAGES) - listed, {INDEX})

    def test_every_file_beside_the_pages_is_linked_by_one(self) -> None:
        linked = {file for page in PAGES for file, _ in links(page)}
        self.assertEqual(set(FILES) - linked, set())
