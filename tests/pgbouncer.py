"""A PgBouncer of our own before a PostgreSQL of our own: each transaction gets another session of the server.

    with Postgres() as server, PgBouncer(server) as pooler:
        psycopg.connect(pooler.url())

Debian's package `pgbouncer` has the program.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self
from urllib.parse import quote

from inference.broker.address import find_temporary_folder
from tests.conditions import PATIENCE_S, eventually
from tests.postgres import Postgres, program
from tools.launcher.reaper import Reaper

PROGRAM = shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]))
PORT = 6432  # names the socket in its folder
CONFIGURATION = """
[databases]
* = host={server}

[pgbouncer]
pool_mode = transaction
server_round_robin = 1
min_pool_size = 4
ignore_startup_parameters = options
listen_addr =
listen_port = {port}
unix_socket_dir = {folder}
auth_type = trust
auth_file = {folder}/users
"""


def is_installed() -> bool:
    """Return True with CI=1, so that a missing pooler fails there."""
    return PROGRAM is not None or bool(os.environ.get("CI"))


class PgBouncer:
    def __init__(self, server: Postgres) -> None:
        if not PROGRAM:
            raise FileNotFoundError("pgbouncer is not installed. On Debian and Ubuntu: apt install pgbouncer")
        self.folder = Path(tempfile.mkdtemp(prefix="pgbouncer-", dir=find_temporary_folder()))
        self.user = server.user
        self.reaper = Reaper()
        self.configuration = self.folder / "pgbouncer.ini"
        text = CONFIGURATION.format(server=server.folder, port=PORT, folder=self.folder)
        self.configuration.write_text(text)
        (self.folder / "users").write_text('"inference" ""\n')
        if self.user:
            shutil.chown(self.folder, self.user)

    def url(self, database: str = "postgres") -> str:
        return f"postgres://inference@{quote(str(self.folder), safe='')}:{PORT}/{database}"

    def start(self) -> None:
        """Return once it passes connections on."""
        assert PROGRAM
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [PROGRAM, str(self.configuration)],
                stdout=log,
                stderr=log,
                user=self.user,
                start_new_session=True,
                cwd=self.folder,
            )
        self.reaper.add(self.process.pid, grace_s=5)
        ready = [program("pg_isready"), "--quiet", f"--host={self.folder}", f"--port={PORT}"]
        eventually(lambda: subprocess.run(ready, check=False).returncode == 0, "PgBouncer takes connections")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        self.reaper.remove(self.process.pid)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.reaper.close()
        shutil.rmtree(self.folder)
