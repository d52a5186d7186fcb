"""What a client sends within the limit of a body costs the web process a bounded amount, and no answer repeats it."""

from __future__ import annotations

import os
from pathlib import Path

from tests.api import hostile
from tests.e2e.case import StackCase

CPU_S = 2.0
MEMORY_MB = 200
ANSWER_BYTES = 64_000
ID_BYTES = 100  # of an accepted job of a bulk
REFUSED_BYTES = 200  # of a refused input


class CostTests(StackCase):
    options = {
        "models": hostile.MODELS, "workers": 0, "environment": {"DEBUG": "0", "API_KEY_REQUIRED": "0"},
    }  # fmt: skip

    def test_no_request_costs_much_or_is_answered_at_length(self) -> None:
        for request in hostile.requests():
            with self.subTest(request.name, path=request.path[:60]):
                self.assertLessEqual(len(request.body), hostile.MOST)
                before = self.processes()
                for pid in before:
                    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the highest memory is counted anew
                answer = self.stack.post(
                    request.path, request.body, headers={"Content-Type": request.type, **request.headers}
                )
                after = self.processes()
                self.assertIn(answer.status, (202, 400, 401, 404, 413, 414, 415, 422, 431, 503), answer.body[:500])
                accepted = len(answer.json.get("jobs", ()))
                self.assertLess(self.cpu_s(after) - self.cpu_s(before), CPU_S)
                self.assertLess(self.highest_mb(after) - self.resident_mb(before), MEMORY_MB)
                told = accepted * ID_BYTES + len(answer.json.get("refused", ())) * REFUSED_BYTES
                self.assertLess(len(answer.body), ANSWER_BYTES + told, answer.body[:500])

    def processes(self) -> dict[int, tuple[float, float, float]]:
        """Of the web server and its children: CPU seconds, highest and present memory in MB."""
        pid = self.stack.children["web"].pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return {task: _usage(task) for task in (pid, *map(int, children))}

    def cpu_s(self, usage: dict[int, tuple[float, float, float]]) -> float:
        return sum(cpu_s for cpu_s, _, _ in usage.values())

    def highest_mb(self, usage: dict[int, tuple[float, float, float]]) -> float:
        return sum(highest for _, highest, _ in usage.values())

    def resident_mb(self, usage: dict[int, tuple[float, float, float]]) -> float:
        return sum(resident for _, _, resident in usage.values())


def _usage(pid: int) -> tuple[float, float, float]:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1000 for line in lines if line.startswith(("VmHWM", "VmRSS"))}
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK"), sizes["VmHWM"], sizes["VmRSS"]
