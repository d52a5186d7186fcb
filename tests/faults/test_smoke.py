"""One trial of each cheap row, on one service; `make faults-quick` and `make faults` play all of them."""

from __future__ import annotations

import unittest

from tests.faults import broker, clients, inputs, kills, messages
from tests.faults.fault import Fault, play
from tests.faults.oracle import Oracle
from tests.faults.service import Service
from tests.faults.table import Tally
from tests.faults.trial import Trial

CHEAP: tuple[type[Fault], ...] = (
    kills.ChildKilled,
    inputs.Errors,
    broker.BrokerForgets,
    broker.ConnectionsCut,
    messages.Malformed,
    clients.SameKey,
    clients.Cancelling,
)


class SmokeTests(unittest.TestCase):
    def test_each_cheap_fault_does_no_harm(self) -> None:
        with Service() as service:
            oracle = Oracle(service)
            for fault in CHEAP:
                with self.subTest(fault.title):
                    self.play(fault, service, oracle)

    def play(self, kind: type[Fault], service: Service, oracle: Oracle) -> None:
        fault = kind(quick=True)
        tally = Tally(row=fault.row, fault=fault.title)
        oracle.forget()
        problems = play(fault, Trial(service, oracle, row=fault.row, number=0, seed=1, quick=True), tally)
        self.assertEqual((problems, tally.lost, tally.recorded_twice), ([], 0, 0))
