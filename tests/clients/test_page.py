"""docs/reference/clients.md is what `make clients` writes: of these versions, and of the clients of the scripts."""

import re
from unittest import TestCase

from tests import javascript
from tests.clients.command import CALLS, GROUPS, NPM, PAGE, CallResult, page, requirements, worked_before


class PageTests(TestCase):
    def test_the_page_names_the_versions_that_are_pinned(self) -> None:
        shown = PAGE.read_text()
        for group in GROUPS:
            for line in requirements(group):
                self.assertIn(line.replace("==", " "), shown)

    def test_each_client_of_the_scripts_is_on_the_page(self) -> None:
        shown = PAGE.read_text()
        for group in GROUPS:
            script = javascript.FOLDER / "calls.mjs" if group == NPM else CALLS / f"{group}.py"
            clients = set(re.findall(r"""(?:call\(\s*|CLIENT = )"([\w@/' -]+)\"""", script.read_text()))
            self.assertTrue(clients)
            for client in clients:
                self.assertIn(f"\n| {client} | `", shown)

    def test_a_call_is_a_row_of_its_table(self) -> None:
        results = [
            CallResult(client="a", call="f", works=True, words=""),
            CallResult(client="a", call="g", works=False, words="x|y" * 99),
        ]
        rows = page(results).splitlines()[-2:]
        self.assertEqual(rows[0], "| a | `f` | works |")
        self.assertTrue(rows[1].startswith("| a | `g` | x\\|yx\\|y"))
        self.assertTrue(rows[1].endswith("… |"))

    def test_the_calls_of_a_client_that_work_share_a_row(self) -> None:
        works, fails = (CallResult(client="a", call=call, works=call == "f", words="") for call in "fg")
        again = CallResult(client="a", call="h", works=True, words="")
        shown = page([works, fails, again])
        self.assertEqual(shown.splitlines()[-2:], ["| a | `f`, `h` | works |", "| a | `g` |  |"])
        self.assertTrue(worked_before(again, shown))
        self.assertFalse(worked_before(fails, shown))
