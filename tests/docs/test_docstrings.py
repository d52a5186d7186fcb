"""A docstring begins as a sentence does, and not as the rest of one."""

import ast
from collections.abc import Iterator

from django.conf import settings
from django.test import SimpleTestCase

FOLDERS = ("api", "inference", "project", "tools", "batch_inference_client")
FRAGMENTS = {  # words that a fragment begins with
    "After", "Also", "And", "As", "At", "Because", "Before", "Behind", "Beside", "Besides", "Between", "But",
    "By", "For", "From", "How", "If", "In", "Not", "Of", "On", "Once", "Only", "Or", "Since", "So", "Than",
    "That", "Those", "Through", "To", "Under", "Unless", "Until", "Up", "What", "Whatever", "When", "Where",
    "Whether", "Which", "Whichever", "While", "Who", "Whoever", "Whose", "Why", "With", "Within", "Without",
}  # fmt: skip


def docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield text


class DocstringTests(SimpleTestCase):
    def test_each_begins_with_a_sentence(self) -> None:
        for folder in FOLDERS:
            for file in sorted((settings.BASE_DIR / folder).rglob("*.py")):
                for text in docstrings(ast.parse(file.read_text())):
                    first = text.split()[0].strip("`.,:;")
                    self.assertNotIn(first, FRAGMENTS, f"{file.relative_to(settings.BASE_DIR)}: {text.splitlines()[0]}")
