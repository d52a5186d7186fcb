"""The pipeline alone: the ceiling. One process a worker; each reads `BATCH_SIZE REPEATS` lines and answers in JSON."""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks import processes
from benchmarks.pipeline import Pipeline, Setting
from benchmarks.systems import ROOT, Variant
from benchmarks.workloads import FOLDER, WORKLOADS, Workload

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
BARE_CALLS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Offline:
    """Over length-sorted texts, all workers at once. By batch size: items a second, CPU an item."""

    variant: str
    rates: dict[int, float]
    cpu_ms: dict[int, float]
    bare_ms: float  # median of single calls of one worker, the others idle

    @property
    def best(self) -> int:
        return max(self.rates, key=self.rates.__getitem__)

    @property
    def rate(self) -> float:
        return self.rates[self.best]


def measure(workload: Workload, variant: Variant, seconds: float, sizes: Sequence[int]) -> Offline:
    with workers(workload, variant) as started:
        rates, cpu_ms = {}, {}
        for size in sizes:
            results = run_on_all(started, f"{size} {seconds}")
            rates[size] = sum(result["items"] / result["wall_s"] for result in results)
            cpu_ms[size] = 1000 * sum(r["cpu_s"] for r in results) / sum(r["items"] for r in results)
        bare = run_on_all(started[:1], "bare 0")[0]
    return Offline(variant=str(variant), rates=rates, cpu_ms=cpu_ms, bare_ms=bare["median_ms"])


class Worker:
    """One process that runs the pipeline."""

    def __init__(self, workload: Workload, setting: Setting, number: int) -> None:
        self.log = FOLDER / "logs" / f"offline-{workload.name}-{number}.log"
        command = (sys.executable, "-m", "benchmarks.offline", workload.name)
        self.process = processes.talking(command, setting.to_environment(), self.log, ROOT)

    def say(self, line: str) -> None:
        print(line, file=self.process.stdin, flush=True)

    def hear(self) -> dict[str, float]:
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise processes.failure("The pipeline alone has ended", self.log)
        answer: dict[str, float] = json.loads(line)
        return answer


@contextlib.contextmanager
def workers(workload: Workload, variant: Variant) -> Iterator[list[Worker]]:
    setting = Setting(
        task=workload.task,
        folder=str(workload.model_folder),
        workers=variant.workers,
        threads=variant.threads,
        max_batch_size=max(BATCH_SIZES),
        port=0,
        broker_port=0,
    )
    started = [Worker(workload, setting, number) for number in range(variant.workers)]
    try:
        for worker in started:
            worker.hear()
        yield started
    finally:
        processes.stop([worker.process for worker in started])


def run_on_all(started: list[Worker], line: str) -> list[dict[str, float]]:
    """One answer a worker; all work at the same time."""
    for worker in started:
        worker.say(line)
    return [worker.hear() for worker in started]


def sorted_batches(texts: list[str], size: int) -> list[list[str]]:
    ordered = sorted(texts, key=lambda text: text.count(" "))
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def run_batches(pipeline: Pipeline, batches: list[list[str]], seconds: float) -> dict[str, float]:
    """Over all texts, at least once and as often as fits into `seconds`."""
    items = 0
    wall_s, cpu_s = time.monotonic(), time.process_time()
    while not items or time.monotonic() - wall_s < seconds:
        for batch in batches:
            items += len(pipeline(batch))
    return {"items": items, "wall_s": time.monotonic() - wall_s, "cpu_s": time.process_time() - cpu_s}


def bare(pipeline: Pipeline, texts: list[str]) -> dict[str, float]:
    times = []
    for text in texts[:BARE_CALLS]:
        begun_s = time.perf_counter()
        pipeline([text])
        times.append(time.perf_counter() - begun_s)
    return {"median_ms": 1000 * statistics.median(times)}


def main() -> None:
    texts = WORKLOADS[sys.argv[1]].texts()
    pipeline = Pipeline(Setting.from_environment())
    pipeline(texts[:8])
    print("{}", flush=True)
    for line in sys.stdin:
        size, seconds = line.split()
        result = (
            bare(pipeline, texts)
            if size == "bare"
            else run_batches(pipeline, sorted_batches(texts, int(size)), float(seconds))
        )
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
