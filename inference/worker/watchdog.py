"""Ends a worker that has stopped working, so that its supervisor starts it again."""

from __future__ import annotations

from dataclasses import dataclass, field

STALLED_S = 60.0


@dataclass(slots=True)
class Watchdog:
    """Fed now and then with what the main process reports; `reason` says why the worker must go, or is empty."""

    working_at: float = field(default=float("-inf"))

    def reason(self, *, now: float, looped_at: float, waiting: int, held: int, busy: int, ready: int) -> str:
        """`waiting` counts messages in the broker, `held` and `busy` this process's jobs and replicas."""
        if now - looped_at > STALLED_S:
            return f"its event loop has not turned for {now - looped_at:.0f} s"
        if not waiting or held or busy or not ready or self.working_at == float("-inf"):
            self.working_at = now
        if now - self.working_at > STALLED_S:
            return f"{waiting} messages wait and it has taken none for {now - self.working_at:.0f} s"
        return ""
