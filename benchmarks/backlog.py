"""What a backlog costs: submission and dispatch with a hundred jobs waiting, and with a hundred thousand.

.venv/bin/python -m benchmarks.backlog [--jobs 100000] [--sample 2000]

The whole service with the echo engine, in a folder of its own. Jobs wait while no worker runs; then one drains the
queue. A rate is that of SAMPLE jobs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor

from tqdm import tqdm

from benchmarks import processes
from benchmarks.whole import Whole

MODELS = """
[echo]
engine = "tests.echo:EchoEngine"
max_queued = 1000000
options = { fixed_ms = 1 }
"""
FEW = 100  # jobs that wait at the beginning
CLIENTS = 8
BULK = 10_000
WARM_UP = 200  # jobs
POLL_S = 1.0


class Backlog:
    def __init__(self, stack: Whole, jobs: int, sample: int) -> None:
        self.stack, self.jobs, self.sample = stack, jobs, sample
        self.bar = tqdm(total=2 * jobs, unit="job", dynamic_ncols=True)

    def run(self) -> None:
        self.stack.children["worker1"].stop()
        self.fill(FEW)
        few = self.submission("100 jobs waiting")
        self.fill(self.jobs - self.stack.jobs.count())
        many = self.submission(f"{self.jobs:,} jobs waiting")
        self.compare(many, few)
        self.stack.start_worker()
        self.stack.ready()
        self.bar.write(f"draining; memory: {self.memory()}")
        while left := self.stack.unfinished.count():
            self.bar.n = 2 * self.jobs - left
            self.bar.refresh()
            time.sleep(POLL_S)
        many, few = self.dispatch()
        self.bar.close()
        print(f"the first of {self.jobs:,}: {many:.0f} finished a second; the last: {few:.0f}; memory: {self.memory()}")
        self.compare(many, few)

    def submission(self, title: str) -> float:
        processes.settle()  # what the filling left to be saved and checkpointed
        self.submit(WARM_UP)
        begun = time.monotonic()
        self.submit(self.sample)
        rate = self.sample / (time.monotonic() - begun)
        self.bar.write(f"{title}: {rate:.0f} submitted a second; memory: {self.memory()}")
        return rate

    def dispatch(self) -> tuple[float, float]:
        """Jobs finished a second among the first and among the last ones, by the database's clock."""
        moments = self.stack.jobs.order_by("finished_at").values_list("finished_at", flat=True)
        finished = [moment.timestamp() for moment in moments if moment]
        first, last = finished[WARM_UP : WARM_UP + self.sample], finished[-FEW - self.sample : -FEW]
        return self.sample / (first[-1] - first[0]), self.sample / (last[-1] - last[0])

    def compare(self, many: float, few: float) -> None:
        print(f"ratio of the long queue to the short one: {many / few:.2f}")

    def submit(self, count: int) -> None:
        """One request a job."""

        def client(number: int) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", self.stack.port)
            for _ in range(count // CLIENTS):
                body = json.dumps({"model": "echo", "inputs": f"client {number}"})
                connection.request("POST", "/v1/jobs", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                if answer.status != 202:
                    raise SystemExit(f"not accepted: {answer.status} {answer.read()!r:.300}")
                answer.read()
            connection.close()

        with ThreadPoolExecutor(CLIENTS) as clients:
            list(clients.map(client, range(CLIENTS)))

    def fill(self, count: int) -> None:
        while count > 0:
            size = min(count, BULK)
            self.stack.submit_bulk(["waiting"] * size, model="echo", priority="normal")
            count -= size
            self.bar.update(size)

    def memory(self) -> str:
        running = {name: child.pid for name, child in self.stack.children.items() if child.exit_code is None}
        sizes = {name: processes.resident_bytes(processes.group_of(pid)) / 2**20 for name, pid in running.items()}
        return ", ".join(f"{name} {mib:.0f} MiB" for name, mib in sizes.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000, help="that wait")
    parser.add_argument("--sample", type=int, default=2000, help="jobs that a rate is measured over")
    options = parser.parse_args()
    with Whole(MODELS) as stack:
        Backlog(stack, options.jobs, options.sample).run()


if __name__ == "__main__":
    main()
