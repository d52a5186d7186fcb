"""What is played where."""

from __future__ import annotations

import unittest
from pathlib import Path
from unittest.mock import patch

from tests.faults import broker, database, drill, matrix, space
from tests.faults.backends import POSTGRES, RABBITMQ, SQLITE, Backends

RELIABILITY = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "reliability.md"


class MatrixTests(unittest.TestCase):
    def test_each_row_is_played_or_tested_elsewhere(self) -> None:
        played = {int(number) for fault in matrix.FAULTS for number in fault.row.split()}
        self.assertEqual(sorted(played | set(map(int, matrix.ELSEWHERE))), list(range(1, 56)))

    def test_each_fault_is_played_in_full(self) -> None:
        for fault in matrix.FAULTS:
            with self.subTest(fault.title):
                self.assertGreater(fault.full, 0)

    def test_the_page_describes_the_new_rows(self) -> None:
        page = RELIABILITY.read_text()
        for fault in matrix.FAULTS:
            if fault.row.isdigit() and int(fault.row) > 28:
                self.assertIn(f"\n| {fault.row} | ", page)

    def test_the_page_of_the_drill_has_what_it_causes(self) -> None:
        page = (RELIABILITY.parents[1] / "guide" / "operations.md").read_text().partition("\n## Drill\n")[2]
        drills: tuple[type[drill.Drill], ...] = (drill.OfAService, drill.OfADatabase)
        codes = [named.code for each in drills for together in each.ROUNDS for named in together]
        self.assertGreater(len(set(codes)), 10)
        for code in codes:
            self.assertIn(f"\n| `{code}` |", page)

    def test_a_fault_that_the_chosen_stack_cannot_have_says_so(self) -> None:
        self.enterContext(patch.object(Backends, "missing", return_value=""))
        stack = Backends(database=POSTGRES, broker=RABBITMQ)
        self.assertEqual(broker.Partition(quick=True, backends=stack).unavailable(), "on redis only")
        self.assertEqual(database.Locked(quick=True, backends=stack).unavailable(), "on sqlite only")
        self.assertEqual(broker.BrokerKilled(quick=True, backends=stack).unavailable(), "")
        self.assertEqual(space.DiskFull(quick=True, backends=stack).unavailable(), "on sqlite only")

    def test_a_fault_of_postgresql_is_played_on_it_whatever_was_chosen(self) -> None:
        fault = database.Stopped(quick=True, backends=Backends(database=SQLITE))
        self.assertEqual(fault.backends.database, POSTGRES)
