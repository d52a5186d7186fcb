from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st

from inference.batching.ordered import CHUNK, Ordered
from tests.properties import QUICK

keys = st.tuples(st.integers(0, 9), st.integers(0, 9))
bounds = st.tuples(st.integers(-1, 10))


class OrderedTests(TestCase):
    @QUICK
    @given(st.sets(keys), bounds, bounds)
    def test_it_answers_as_a_sorted_list_does(self, present, low, high):
        ordered = filled(present)
        self.assertEqual(list(ordered), sorted(present))
        self.assertEqual(len(ordered), len(present))
        self.assertEqual(list(ordered.between(low, high)), [key for key in sorted(present) if low <= key < high])
        self.assertEqual(list(ordered.between(low)), [key for key in sorted(present) if low <= key])
        self.assertEqual(ordered.before(high), max((key for key in present if key < high), default=None))

    def test_it_keeps_order_over_many_chunks(self):
        mixed = [(7919 * n % 10_007,) for n in range(5 * CHUNK)]
        ordered = filled(mixed)
        self.assertEqual(list(ordered), sorted(mixed))
        for key in mixed[::2]:
            ordered.remove(key)
        left = sorted(mixed[1::2])
        self.assertEqual((list(ordered), ordered.first), (left, left[0]))
        self.assertEqual([ordered.before(key) for key in left[1:]], left[:-1])
        for key in left:
            ordered.remove(key)
        self.assertEqual((list(ordered), len(ordered)), ([], 0))

    def test_removing_what_is_not_there_is_an_error(self):
        for ordered in (filled([]), filled([(1,), (3,)])):
            for absent in ((0,), (2,), (4,)):
                with self.assertRaises(KeyError):
                    ordered.remove(absent)


def filled(keys) -> Ordered:
    ordered = Ordered()
    for key in keys:
        ordered.add(key)
    return ordered
