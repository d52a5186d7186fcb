"""The line on the terminal that shows the progress of a map or a batch."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, Self

from batch_inference_client.errors import JobError

EVERY_S = 0.2
WIDTH = 20


class Bar:
    """A bar on stderr, which is shown if stderr is a terminal and the bar is wanted."""

    def __init__(self, total: int | None, *, shown: bool, done: int = 0) -> None:
        self._total, self._done, self._errors = total, done, 0
        self._shown = shown and sys.stderr.isatty()
        self._began_at, self._first = time.monotonic(), done
        self._drawn_at = 0.0

    def add(self, batch: Sequence[tuple[int, Any]]) -> None:
        errors = sum(isinstance(answer, JobError) for _, answer in batch)
        self.show(self._total, done=self._done + len(batch), errors=self._errors + errors)

    def show(self, total: int | None, *, done: int, errors: int) -> None:
        self._total, self._done, self._errors = total, done, errors
        if self._shown and time.monotonic() - self._drawn_at > EVERY_S:
            self._draw()

    def text(self, elapsed_s: float) -> str:
        rate = (self._done - self._first) / elapsed_s if elapsed_s > 0 else 0.0
        parts = [f"{self._done:,}", f"{rate:,.0f}/s"]
        if self._total:
            share = min(1.0, self._done / self._total)
            filled = int(share * WIDTH)
            left = _format_duration((self._total - self._done) / rate) if rate else "?"
            parts = [
                f"[{'#' * filled}{'.' * (WIDTH - filled)}] {self._done:,}/{self._total:,}",
                parts[1],
                f"{left} left",
            ]
        if self._errors:
            parts.append(f"{self._errors:,} errors")
        return "  ".join(parts)

    def _draw(self, end: str = "") -> None:
        self._drawn_at = time.monotonic()
        sys.stderr.write(f"\r\x1b[K{self.text(self._drawn_at - self._began_at)}{end}")
        sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._shown:
            self._draw("\n")


def _format_duration(seconds: float) -> str:
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
