"""Tables for the terminal and for pages, and what they were measured on."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path


def machine() -> dict[str, str]:
    cores = len(os.sched_getaffinity(0))
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": f"{cores} cores of {names[0] if names else platform.processor()}",
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
    }


def aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def markdown_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---", *("---:" for _ in head[1:])]
    return [f"| {' | '.join(line)} |" for line in (head, rule, *lines)]


def between_marks(page: Path, figures: str, begin: str, end: str) -> None:
    before, _, rest = page.read_text().partition(begin)
    page.write_text(f"{before}{begin}\n{figures}\n{end}{rest.partition(end)[2]}")
