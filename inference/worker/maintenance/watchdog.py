"""The check that finds a worker which has stopped working, so that it ends and its supervisor restarts it."""

from dataclasses import dataclass

STALLED_S = 60.0


@dataclass(slots=True)
class Watchdog:
    """The watchdog of a worker.

    Its `find_reason_to_end` is called every few seconds with the state of the main process. It is not called while the
    broker is away, for which the event loop itself waits, nor while the whole process is stopped. After such a pause it
    begins anew.
    """

    looked_at: float = float("-inf")
    began_at: float = float("-inf")
    working_at: float = float("-inf")

    def find_reason_to_end(
        self, *, now: float, looped_at: float, waiting: int, held: int, busy: int, ready: int
    ) -> str:
        """Return why the worker must end, or "".

        `waiting` is the number of messages in the broker, `held` that of this worker's jobs, `busy` and `ready` those
        of its replicas. `now` and `looped_at` are monotonic seconds.
        """
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
