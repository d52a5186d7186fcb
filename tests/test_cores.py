"""A web process is held to a core while it needs most of one."""

from __future__ import annotations

import os
import threading
import time
import unittest
from unittest.mock import patch

from project.cores import BUSY, LOOK_S, Cores


@unittest.skipUnless(hasattr(os, "sched_setaffinity"), "Linux only")
class CoresTests(unittest.TestCase):
    def setUp(self) -> None:
        self.used_s, self.now_s = 100.0, 1000.0
        self.enterContext(patch.object(time, "process_time", lambda: self.used_s))
        self.enterContext(patch.object(time, "monotonic", lambda: self.now_s))
        self.set: dict[int, set[int]] = {}
        self.enterContext(patch.object(os, "sched_getaffinity", lambda _: {2, 5}))
        self.enterContext(patch.object(os, "sched_setaffinity", self.set.__setitem__))
        self.cores = Cores()

    def look(self, share: float) -> None:
        self.set.clear()
        self.used_s, self.now_s = self.used_s + share * LOOK_S, self.now_s + LOOK_S
        self.cores.choose_cores()

    def test_it_is_on_one_core_while_it_is_busy_with_all_its_threads(self) -> None:
        self.assertLess(self.cores.own, {2, 5})
        for share, cores in ((BUSY - 0.1, {2, 5}), (BUSY + 0.1, self.cores.own), (BUSY - 0.1, {2, 5})):
            self.look(share)
            self.assertIn(threading.get_native_id(), self.set)
            self.assertEqual(list(self.set.values()), [cores] * len(self.set))

    def test_a_thread_that_has_ended_is_left_out(self) -> None:
        with patch.object(os, "sched_setaffinity", side_effect=ProcessLookupError):
            self.look(BUSY + 0.1)
