"""A map whose program and worker are killed in the middle, and that is started again with the same name.

    python -m tests.batch_inference_client.resume 100000

With `--beside` it compares the time of `map` with that of the bulk interface, in turns. It prints seconds, and no test
looks at them.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.conditions import eventually
from tests.ports import HOST

ROOT = Path(__file__).parent.parent.parent
MODELS = """
[echo]
engine = "tests.echo:EchoEngine"
max_batch_size = 32
"""
NAME = "the-one"
BULK, IN_FLIGHT = 1000, 4


def line(number: int) -> str:
    return f"line {number}: a text of some words, as people write them into forms"


def write_lines(file: Path, count: int) -> None:
    with file.open("w") as lines:
        lines.writelines(json.dumps(line(number)) + "\n" for number in range(count))


class Program:
    """The map command as a process of its own."""

    def __init__(self, url: str, lines: Path, answers: Path) -> None:
        self.answers = answers
        self.memory_mb = 0.0  # the most that it took, once it has ended
        with lines.open("rb") as source:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "batch_inference_client",
                    "--url",
                    url,
                    "map",
                    "echo",
                    "--name",
                    NAME,
                    "--output",
                    str(answers),
                ],
                stdin=source,
                cwd=ROOT,
            )

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def answered(self) -> int:
        return self.answers.read_bytes().count(b"\n") if self.answers.exists() else 0

    def wait_for(self, count: int) -> None:
        """Returns once so many are answered, or it has ended; nothing new for the whole patience fails."""
        while not self.has_ended() and (before := self.answered()) < count:
            eventually(lambda: self.has_ended() or self.answered() > before, f"more than {before} answers")

    def has_ended(self) -> bool:
        if self.process.returncode is None:
            pid, status, used = os.wait4(self.process.pid, os.WNOHANG)
            if pid:
                self.process.returncode = os.waitstatus_to_exitcode(status)
                self.memory_mb = used.ru_maxrss / 1024
        return self.process.returncode is not None


def wrong(answers: Path, count: int) -> Iterator[str]:
    """What is not as it should be: each line answered once, in order."""
    from tests import echo

    with answers.open() as found:
        number = -1
        for number, text in enumerate(found):
            if json.loads(text) != {"output": echo.expected(line(number))}:
                yield f"line {number}: {text[:200]}"
    if number + 1 != count:
        yield f"{number + 1} answers to {count} lines"


def killed_and_resumed(stack: Any, folder: Path, count: int) -> float:
    """Most memory in MB of the run that ended. Raises `AssertionError`."""
    lines, answers = folder / "lines.jsonl", folder / "answers.jsonl"
    write_lines(lines, count)
    url = f"http://{HOST}:{stack.port}"
    for share in (0.3, 0.6):
        program = Program(url, lines, answers)
        program.wait_for(int(share * count))
        program.kill()
        stack.children["worker1"].kill()
        with answers.open("ab") as file:
            file.write(b'{"output": {"ec')  # as if it had been cut
        stack.start_worker("worker1")
    last = Program(url, lines, answers)
    last.wait_for(count)
    eventually(last.has_ended, "it ends after its last answer")
    problems = list(wrong(answers, count))[:5]
    jobs = stack.jobs.filter(bulk__idempotency_key__contains=f"map:{NAME}:")
    made, inputs = jobs.count(), jobs.values("inputs").distinct().count()
    if last.process.returncode or problems or (made, inputs) != (count, count):
        raise AssertionError(
            f"exit {last.process.returncode}, {made} jobs of {inputs} inputs for {count} lines; {problems}"
        )
    return last.memory_mb


def main() -> None:
    import tempfile

    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
    from tests.stack import Stack

    count = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        if "--beside" in sys.argv:
            for _ in range(3):
                for way in (by_map, by_bulks):
                    with Stack(models=MODELS) as stack:
                        report(way.__name__, stack, lambda: way(stack, count))  # noqa: B023
        else:
            with Stack(models=MODELS) as stack:
                began_at = time.monotonic()
                memory_mb = killed_and_resumed(stack, Path(folder), count)
                sys.stdout.write(f"{count} lines, once each and in order; {memory_mb:.0f} MB at most,")
                sys.stdout.write(f" {time.monotonic() - began_at:.0f} s with two kills\n")


def report(name: str, stack: Any, call: Any) -> None:
    own, began_at, before = resource.getrusage(resource.RUSAGE_SELF), time.monotonic(), used_s(stack)
    count = call()
    now = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = now.ru_utime + now.ru_stime - own.ru_utime - own.ru_stime
    after = used_s(stack)
    cpu_times = "  ".join(f"{each} {after[each] - before[each]:.1f} s" for each in before)
    wall_s = time.monotonic() - began_at
    sys.stdout.write(f"{name}: {count} answers, wall {wall_s:.1f} s; CPU: client {cpu_s:.1f} s  {cpu_times}\n")
    sys.stdout.flush()


def used_s(stack: Any) -> dict[str, float]:
    """CPU seconds of each program of the stack, and of its children."""
    found = dict.fromkeys(stack.children, 0.0)
    parents = {child.pid: name for name, child in stack.children.items()}
    for _ in range(3):
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if (parent := int(fields[1])) in parents:
                parents.setdefault(int(folder.name), parents[parent])
    for pid, name in parents.items():
        try:
            fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[name] += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def by_map(stack: Any, count: int) -> int:
    from batch_inference_client import Client

    with Client(f"http://{HOST}:{stack.port}") as client:
        return sum(1 for _ in client.map("echo", map(line, range(count))))


def by_bulks(stack: Any, count: int) -> int:
    """The bulk interface as it is documented: post, wait, read the pages; as many bulks in flight."""
    waiting: list[str] = []
    answers, posted = 0, 0
    while posted < count or waiting:
        while posted < count and len(waiting) < IN_FLIGHT:
            inputs = [line(number) for number in range(posted, min(posted + BULK, count))]
            accepted = stack.post("/v1/jobs/bulk", {"model": "echo", "inputs": inputs})
            waiting.append(accepted.json["id"])
            posted += len(inputs)
        while not stack.get(f"/v1/jobs/bulk/{waiting[0]}?wait=30").json["finished"]:
            pass
        address = f"/v1/jobs?bulk={waiting.pop(0)}&outputs=1&limit=500"
        while address:
            page = stack.get(address).json
            answers += len(page["items"])
            address = page["next"]
    return answers


if __name__ == "__main__":
    main()
