"""What a job costs besides its engine: ms of CPU an item, by process, of a bulk, of lists and of single requests.

.venv/bin/python -m benchmarks.path [--bulk 10000] [--rounds 5] [--only bulk,lists]

The whole service in a folder of its own, with the echo engine, which sleeps 1 ms a call: like a device it takes time,
and hardly any CPU. A server of the database, where there is one, is not counted. Medians over the rounds.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from tqdm import tqdm

from benchmarks import processes
from benchmarks.whole import Whole

MODELS = """
[echo]
engine = "tests.echo:EchoEngine"
options = {{ fixed_ms = 1 }}
max_queued = 1000000
max_batch_size = {batch}
"""
TEXT = "a short text of some twelve words, as many of them are, {}"
LIST = 32
PARTS = ("web", "broker", "worker, main", "worker, children")
POLL_S = 0.02
JSON = {"Content-Type": "application/json"}

Costs = Mapping[str, float]  # CPU seconds, by part


class Path:
    def __init__(self, stack: Whole, options: argparse.Namespace) -> None:
        self.stack, self.clients = stack, options.clients
        self.cases: Mapping[str, tuple[Callable[[int], None], int]] = {
            "bulk": (self.bulk, options.bulk),
            "lists": (self.lists, options.requests * LIST),
            "singles": (self.singles, options.requests),
        }

    def cost(self, case: str) -> Costs:
        """Seconds of CPU an item."""
        run, items = self.cases[case]
        before = self.cpu_s()
        run(items)
        after = self.cpu_s()
        return {part: (after[part] - before[part]) / items for part in PARTS}

    def cpu_s(self) -> Costs:
        main = self.stack.children["worker1"].pid
        return {
            "web": processes.cpu_seconds(processes.group_of(self.stack.children["web"].pid)),
            "broker": processes.cpu_seconds(processes.group_of(self.stack.children["broker"].pid)),
            "worker, main": processes.cpu_seconds([main]),
            "worker, children": processes.cpu_seconds(pid for pid in processes.group_of(main) if pid != main),
        }

    def bulk(self, items: int) -> None:
        bulk = self.stack.submit_bulk([TEXT.format(i) for i in range(items)], model="echo")
        while self.stack.unfinished.filter(bulk=bulk).exists():
            time.sleep(POLL_S)
        time.sleep(POLL_S)

    def lists(self, items: int) -> None:
        self._requests(items // LIST, [TEXT.format(i) for i in range(LIST)])

    def singles(self, items: int) -> None:
        self._requests(items, TEXT)

    def _requests(self, count: int, inputs: object) -> None:
        """From so many clients, each of which sends its next request when it has its answer."""
        body = json.dumps({"inputs": inputs})

        def client(_: int) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", self.stack.port)
            for _ in range(count // self.clients):
                connection.request("POST", "/v1/models/echo", body, JSON)
                answer = connection.getresponse()
                if answer.status != 200:
                    raise SystemExit(f"not answered: {answer.status} {answer.read()!r:.300}")
                answer.read()
            connection.close()

        with ThreadPoolExecutor(self.clients) as clients:
            list(clients.map(client, range(self.clients)))


def report(rounds: Mapping[str, list[Costs]]) -> None:
    print(f"{'ms of CPU an item':18}" + "".join(f"{part:>18}" for part in (*PARTS, "all")))
    for case, costs in rounds.items():
        median = [statistics.median(cost[part] for cost in costs) for part in PARTS]
        whole = statistics.median(sum(cost.values()) for cost in costs)
        print(f"{case:18}" + "".join(f"{1000 * seconds:18.3f}" for seconds in (*median, whole)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bulk", type=int, default=10_000, help="inputs (%(default)s)")
    parser.add_argument("--requests", type=int, default=2048, help="of one text, and of a list (%(default)s)")
    parser.add_argument("--clients", type=int, default=32, help="that send them (%(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="max_batch_size (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="bulk,lists,singles", help="of bulk, lists and singles, with commas")
    options = parser.parse_args()
    with Whole(MODELS.format(batch=options.batch), MAX_BULK_INPUTS=str(options.bulk)) as stack:
        path = Path(stack, options)
        rounds: dict[str, list[Costs]] = {case: [] for case in options.only.split(",")}
        for case in rounds:
            path.cost(case)  # warms up
        for _ in tqdm(range(options.rounds), unit="round", dynamic_ncols=True):
            for case, costs in rounds.items():
                costs.append(path.cost(case))
        report(rounds)


if __name__ == "__main__":
    main()
