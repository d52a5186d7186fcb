"""The embedded broker as a child of this process: started, stopped, killed, and started again on its data."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from inference.broker.embedded import is_answering, make_server_command, prepare_and_lock_folders
from inference.broker.embedded_data_folder import EmbeddedBrokerError
from tests.conditions import PATIENCE_S, wait_for


class EmbeddedBroker:
    """One server as a child of this process, in a session of its own: Ctrl-C does not reach it."""

    def __init__(self, data: Path, path: Path) -> None:
        self.data, self.path = data, path
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def start(self) -> None:
        """Returns once it answers. Raises `EmbeddedBrokerError`, also when a living server has the socket."""
        lock = prepare_and_lock_folders(self.data, self.path)
        try:
            with open(self.log, "ab") as log:
                self.process = subprocess.Popen(
                    make_server_command(self.data, self.path),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(lock,),
                    start_new_session=True,
                )
        finally:
            os.close(lock)
        try:
            self.wait_until_answering()
        except EmbeddedBrokerError:
            self.kill()
            raise

    @property
    def log(self) -> Path:
        return self.data / "server.log"

    def wait_until_answering(self) -> None:
        wait_for(lambda: is_answering(self.path) or not self.is_alive(), limit_s=PATIENCE_S)
        if not is_answering(self.path):
            raise EmbeddedBrokerError(f"The server on {self.path} does not answer. Its last words:\n{self._tail()}")

    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self) -> None:
        """Ask it to write its data and leave; kill what has not left in the end."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """As a crash would: what it had not written is lost."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-8:])
