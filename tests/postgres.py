"""A PostgreSQL server of our own, on a socket in a folder of its own: `python -m tests.postgres make test`.

Runs the command with DATABASE_URL set to it. Debian's package `postgresql` has the programs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self
from urllib.parse import quote

from inference.broker.address import find_temporary_folder
from tests import processes
from tests.conditions import PATIENCE_S, eventually
from tools.launcher.reaper import Reaper

UNPRIVILEGED = "nobody"  # the server refuses to run as root


def program(name: str) -> str:
    """The newest installed one; Debian keeps them off the PATH."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
    found = str(installed[-1]) if installed else shutil.which(name)
    if not found:
        raise FileNotFoundError(f"{name} is not installed. On Debian and Ubuntu: apt install postgresql")
    return found


class Postgres:
    def __init__(self, like: Path | None = None) -> None:
        """`like` is the data of a server that has ended, with which this one begins."""
        self.folder = Path(tempfile.mkdtemp(prefix="postgres-", dir=find_temporary_folder()))
        self.data = self.folder / "data"
        self.user = UNPRIVILEGED if os.getuid() == 0 else None
        self.reaper = Reaper()
        if self.user:
            shutil.chown(self.folder, self.user)
        if like:
            self.copy(like, self.data)
        else:
            self._run(program("initdb"), "--auth=trust", "--username=inference", "--no-sync", f"--pgdata={self.data}")

    @staticmethod
    def copy(data: Path, to: Path) -> None:
        """Copy a folder with its owner and permissions."""
        subprocess.run(["cp", "-a", data, to], check=True)

    def url(self, database: str = "postgres") -> str:
        return f"postgres://inference@{quote(str(self.folder), safe='')}/{database}"

    def start(self) -> None:
        """Returns once it takes connections."""
        options = {"listen_addresses": "", "unix_socket_directories": str(self.folder), "fsync": "off"}
        settings = (f"--{name}={value}" for name, value in options.items())
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [program("postgres"), "-D", str(self.data), *settings],
                stdout=log,
                stderr=log,
                user=self.user,
                start_new_session=True,
                cwd=self.folder,
            )
        self.reaper.add(self.process.pid, grace_s=5)
        ready = [program("pg_isready"), "--quiet", f"--host={self.folder}"]
        eventually(lambda: subprocess.run(ready, check=False).returncode == 0, "PostgreSQL takes connections")

    def stop(self) -> None:
        """Disconnects everybody, as a restart of the server does."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(PATIENCE_S)
        self.reaper.remove(self.process.pid)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """It takes connections and statements, as far as their senders can tell, and answers nothing."""
        leader = self.process.pid
        os.kill(leader, signal.SIGSTOP)  # first, so that it starts no others
        pids = [leader, *processes.children(leader)]
        self._send(pids, signal.SIGSTOP)
        try:
            yield
        finally:
            self._send(pids, signal.SIGCONT)

    def _send(self, pids: list[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.reaper.close()
        shutil.rmtree(self.folder)

    def _run(self, *command: str) -> None:
        subprocess.run(command, check=True, user=self.user, stdout=subprocess.DEVNULL, cwd=self.folder)


if __name__ == "__main__":
    with Postgres() as server:
        environment = {**os.environ, "DATABASE_URL": server.url()}
        code = subprocess.run(sys.argv[1:], env=environment, check=False).returncode
    sys.exit(code)
