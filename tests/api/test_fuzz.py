from tests.api import fuzz
from tests.e2e.case import StackCase
from tests.ports import HOST


class FuzzTests(StackCase):
    """A few examples an operation; `make fuzz` runs hundreds."""

    options = {"models": fuzz.MODELS, "replicas": 1}

    def test_every_answer_is_as_the_document_says_and_none_is_5xx(self) -> None:
        finished = fuzz.fuzz(f"http://{HOST}:{self.stack.port}", 2)
        self.assertEqual(finished.returncode, 0, finished.stdout + finished.stderr)
        self.assertEqual([line for line in self.stack.log if "Traceback" in line], [])
