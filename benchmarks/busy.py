"""How much of the time a replica computes, and how long it pauses between two calls, with a stand-in for a GPU.

.venv/bin/python -m benchmarks.busy [--call-ms 1] [--texts 1] [--clients 64] [--backlog 0] [--ahead 1]

The whole service with two web processes and the default replicas, in a folder of its own. Each client sends its next
request when it has its answer, and checks it. With a backlog no client asks: so many jobs wait as the worker starts.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import time
from collections import defaultdict

from benchmarks.busy_engine import CALL, CALLS
from benchmarks.whole import Whole

MODELS = """
[busy]
engine = "benchmarks.busy_engine:TimedEcho"
max_queued = 1000000
options = {{ fixed_ms = {call_ms} }}
"""
WARM_UP_S = 2.0
BULK = 10_000


async def client(port: int, number: int, texts: int, until: float) -> int:
    """How many answers it had."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    count = 0
    while time.monotonic() < until:
        inputs = [f"client {number}, request {count}, text {text}" for text in range(texts)]
        body = json.dumps({"inputs": inputs if texts > 1 else inputs[0]}).encode()
        head = "POST /v1/models/busy HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
        writer.write(f"{head}{len(body)}\r\n\r\n".encode() + body)
        status = await reader.readline()
        length = 0
        while (line := (await reader.readline()).lower()) != b"\r\n":
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        answer = await reader.readexactly(length)
        if b" 200 " not in status or json.loads(answer) != (inputs if texts > 1 else inputs[0]):
            raise SystemExit(f"wrong: {status!r} {answer!r:.300}")
        count += 1
    writer.close()
    return count


async def clients(port: int, count: int, texts: int, seconds: float) -> int:
    until = time.monotonic() + seconds
    return sum(await asyncio.gather(*(client(port, number, texts, until) for number in range(count))))


def fill(stack: Whole, count: int, texts: int) -> None:
    waiting = ["waiting"] * texts if texts > 1 else "waiting"
    for first in range(0, count, BULK // texts):
        stack.submit_bulk([waiting] * min(BULK // texts, count - first), model="busy")


def report(stack: Whole, since: float, until: float, answers: int) -> None:
    calls = defaultdict(list)
    for pid, began, ended in CALL.iter_unpack((stack.folder / CALLS).read_bytes()):
        if since <= began and ended <= until:
            calls[pid].append((began, ended))
    ours = list(calls.values())
    since, until = min(own[0][0] for own in ours), max(own[-1][1] for own in ours)
    busy_s = sum(ended - began for own in ours for began, ended in own)
    gaps = [after[0] - before[1] for own in ours for before, after in itertools.pairwise(own)]
    count = sum(map(len, ours))
    print(
        f"busy {100 * busy_s / (until - since) / len(ours):.1f} % of the time of {len(ours)} replicas,"
        f" {count / (until - since):.0f} calls a second of {answers / max(1, count):.1f} answers;"
        f" {answers / (until - since):.0f} answers a second; gap ms:"
        f" median {1000 * statistics.median(gaps):.2f},"
        f" 10 % below {1000 * statistics.quantiles(gaps, n=10)[0]:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--call-ms", type=float, default=1.0, help="of a call of any size (%(default)s)")
    parser.add_argument("--texts", type=int, default=1, help="in a request (%(default)s)")
    parser.add_argument("--clients", type=int, default=64, help="(%(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="that they ask (%(default)s)")
    parser.add_argument("--backlog", type=int, default=0, help="jobs that wait, instead of clients")
    parser.add_argument("--ahead", choices=("0", "1"), default="1", help="whether replicas work ahead (%(default)s)")
    options = parser.parse_args()
    models = MODELS.format(call_ms=options.call_ms)
    with Whole(models, GRANIAN_WORKERS="2", WORK_AHEAD=options.ahead) as stack:
        if options.backlog:
            stack.children["worker1"].stop()
            fill(stack, options.backlog, options.texts)
            stack.start_worker()
            while stack.unfinished.exists():
                time.sleep(0.2)
            report(stack, 0.0, time.monotonic(), options.backlog)
            return
        asyncio.run(clients(stack.port, options.clients, options.texts, WARM_UP_S))
        began = time.monotonic()
        answers = asyncio.run(clients(stack.port, options.clients, options.texts, options.seconds))
        report(stack, began, time.monotonic(), answers)


if __name__ == "__main__":
    main()
