from unittest import TestCase

from tests.mutants import ROOT, draw, find_mutants, find_tests

CODE = '''
@dataclass(frozen=True)
class Row:
    """Not one."""

    size: Literal[1] = 1

    def f(self, a: Literal[2]) -> Literal[0]:
        logger.info("not one %d", 1)
        if not a and "où" != a:
            self.g(a)
        return f"{a == 1}"
'''
LINES = {
    ("condition negated", 'if (not (not a and "où" != a)):'), ("and/or swapped", 'if (not a) or ("où" != a):'),
    ("not dropped", 'if (a) and "où" != a:'), ("comparison swapped", 'if not a and ("où") == (a):'),
    ("call removed", "pass"), ("integer off by one", "size: Literal[1] = 2"),
}  # fmt: skip


class MutantTests(TestCase):
    def test_what_decides_is_changed_and_text_logs_and_types_are_not(self) -> None:
        found = {
            (mutant.kind, mutant.after.splitlines()[mutant.line - 1].strip()) for mutant in find_mutants("m", CODE)
        }
        self.assertEqual(found, LINES)

    def test_a_seed_draws_the_same_and_of_each_kind_as_many(self) -> None:
        every = [*find_mutants("m", CODE + CODE.replace("Row", "Other"))]
        self.assertEqual(draw(every, 6, 1), draw(every, 6, 1))
        self.assertEqual(len({mutant.kind for mutant in draw(every, 6, 1)}), 6)

    def test_the_nearest_tests_of_a_module_come_first(self) -> None:
        tests = find_tests(ROOT, "inference/submission/idempotency.py")
        self.assertEqual(tests[0], "tests.inference.submission.test_idempotency")
        self.assertIn("tests.inference.submission.test_split_jobs", tests)
        self.assertFalse([name for name in tests if name.startswith("tests.e2e")])
