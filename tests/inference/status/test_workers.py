import itertools
import threading
from collections.abc import Iterator
from unittest import TestCase
from unittest.mock import patch

from inference.status.workers import Remembered
from inference.store import connections
from tests.conditions import eventually


class RememberedTests(TestCase):
    def test_a_value_is_read_once_for_all_who_ask_within_a_second(self) -> None:
        reads = itertools.count(1)
        remembered = Remembered(lambda: next(reads))
        self.assertEqual([remembered(), remembered()], [1, 1])

    def test_who_asks_during_a_read_that_fails_fails_with_it(self) -> None:
        reads: list[int] = []
        failed: list[str] = []
        gate = threading.Event()

        def read() -> None:
            reads.append(1)
            gate.wait(10)
            raise OSError("away")

        remembered = Remembered(read)

        def ask() -> None:
            try:
                remembered()
            except OSError as error:
                failed.append(str(error))

        threads = [threading.Thread(target=ask) for _ in range(5)]
        with patch.object(connections, "give_back") as waiting:
            for thread in threads:
                thread.start()
            eventually(lambda: waiting.call_count == 4, "the others wait")
        gate.set()
        for thread in threads:
            thread.join()
        self.assertEqual((failed, len(reads)), (["away"] * 5, 1))

    def test_after_a_failure_the_next_to_ask_reads_again(self) -> None:
        answers: Iterator[Exception | int] = iter([OSError("away"), 7])

        def read() -> int:
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

        remembered = Remembered(read)
        self.assertRaises(OSError, remembered)
        self.assertEqual(remembered(), 7)
