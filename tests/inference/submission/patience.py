"""The limits within which a request is answered, as long as tests are patient: what is late here is no fault."""

from unittest import TestCase
from unittest.mock import patch

from inference.submission import idempotency, jobs
from inference.web_process import queue_counter, writer
from tests.conditions import PATIENCE_S


def lend(case: TestCase) -> None:
    """Until the test ends."""
    for module in (idempotency, jobs, queue_counter, writer):
        case.enterContext(patch.object(module, "PATIENCE_S", PATIENCE_S))
