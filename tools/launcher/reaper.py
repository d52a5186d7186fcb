"""The reaper, a program that ends the processes that a supervisor left behind, however the supervisor died.

It imports nothing of the project. It reads `+ GROUP GRACE_S` and `- GROUP` from its standard input, where GROUP is a
process group. At the end of the input, which is the end of the supervisor, it stops the groups that are left, the
youngest first. `PR_SET_PDEATHSIG` would reach the direct children only, and on Linux only.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def end_group(group: int, grace_s: float) -> None:
    """Ask the group's leader to stop, and kill what is left of the group after `grace_s`."""
    deadline = time.monotonic() + grace_s
    with contextlib.suppress(ProcessLookupError):
        os.kill(group, signal.SIGTERM)
    while is_alive(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    kill_group(group)


class Reaper:
    """The process that ends the process groups added to it when this process is gone."""

    def __init__(self) -> None:
        command = [sys.executable, "-S", __file__]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, bufsize=1, start_new_session=True)

    def add(self, group: int, grace_s: float) -> None:
        self._write(f"+ {group} {grace_s}")

    def remove(self, group: int) -> None:
        self._write(f"- {group}")

    def close(self) -> None:
        """End the groups that are left, and the reaper."""
        if self.process.stdin:
            self.process.stdin.close()
        self.process.wait()

    def _write(self, line: str) -> None:
        if self.process.stdin and self.process.poll() is None:
            self.process.stdin.write(line + "\n")


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: dict[int, float] = {}
    for line in sys.stdin:
        verb, group, *grace_s = line.split()
        if verb == "+":
            groups[int(group)] = float(grace_s[0])
        else:
            groups.pop(int(group), None)
    for group, grace in reversed(groups.items()):
        end_group(group, grace)


if __name__ == "__main__":
    main()
