"""Ends a worker that has stopped working, so that its supervisor starts it again."""

from dataclasses import dataclass

STALLED_S = 60.0


@dataclass(slots=True)
class Watchdog:
    """Fed every few seconds with what the main process reports; `reason` says why the worker must go, or is empty.

    Nothing is reported while the broker is away, for which the event loop itself waits, nor while the whole process is
    stopped: after such a pause it looks anew.
    """

    looked_at: float = float("-inf")
    began_at: float = float("-inf")
    working_at: float = float("-inf")

    def reason(self, *, now: float, looped_at: float, waiting: int, held: int, busy: int, ready: int) -> str:
        """`waiting` counts messages in the broker, `held` and `busy` this process's jobs and replicas."""
        if now - self.looked_at > STALLED_S / 2:
            self.began_at = self.working_at = now
        self.looked_at = now
        if now - max(looped_at, self.began_at) > STALLED_S:
            return f"its event loop has not turned for {now - looped_at:.0f} s"
        if not waiting or held or busy or not ready:
            self.working_at = now
        if now - self.working_at > STALLED_S:
            return f"{waiting} messages wait and it has taken none for {now - self.working_at:.0f} s"
        return ""
