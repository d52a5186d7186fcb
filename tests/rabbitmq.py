"""A RabbitMQ of our own, on a port of the loopback, with all its files in a folder of its own.

    with RabbitMQ() as server:
        kombu.Connection(server.url)

Debian's package `rabbitmq-server` has the programs.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self

from inference.broker.address import find_temporary_folder
from tests.conditions import PATIENCE_S, eventually
from tests.ports import HOST, free_port
from tools.launcher.reaper import Reaper

PROGRAMS = Path("/usr/lib/rabbitmq/bin")  # those on Debian's PATH insist on the system's own server
_NAMES = re.compile(r'"(.*?)"')
_MESSAGES = re.compile(r'{"(.+?)", *(\d+)}')


def is_installed() -> bool:
    """True with CI=1, so that a missing server fails there."""
    return PROGRAMS.is_dir() or bool(os.environ.get("CI"))


class RabbitMQ:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rabbitmq-", dir=find_temporary_folder()))
        self.port, self.names_port, nodes_port = (free_port() for _ in range(3))
        self.reaper = Reaper()
        self.names: subprocess.Popen[bytes] | None = None  # of Erlang's nodes: the server would start one for ever
        self.process: subprocess.Popen[bytes] | None = None
        configuration = self.folder / "rabbitmq.conf"
        configuration.write_text(f"listeners.tcp.local = {HOST}:{self.port}\ndisk_free_limit.absolute = 1MB\n")
        self.environment = {
            "PATH": f"{PROGRAMS}:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(self.names_port),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_NODENAME": "rabbit@localhost",
            "RABBITMQ_DIST_PORT": str(nodes_port),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": str(configuration),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",  # one scheduler, which does not spin
            "RUNNING_UNDER_SYSTEMD": "1",  # the server in place of the shell that starts it
        }

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{HOST}:{self.port}//"

    def start(self) -> None:
        """Returns once it takes connections, with what it held before."""
        if self.names is None:
            self.names = self._run("epmd", "-port", str(self.names_port), "-address", HOST)
            eventually(lambda: answers(self.names_port), "Erlang's names are served")
        self.process = self._run("rabbitmq-server")
        eventually(self._is_ready, "RabbitMQ takes connections")

    def stop(self) -> None:
        """Disconnects everybody, as a restart of the server does."""
        if self.process:
            self.process.terminate()
            self.process.wait(PATIENCE_S)
            self.reaper.remove(self.process.pid)

    def write_to_disk(self) -> None:
        """Have it write which queues it has: a kill before that leaves new ones that it cannot recover."""
        self.evaluate("[dets:sync(Table) || Table <- dets:all()]")

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.reaper.remove(self.process.pid)

    def kill_before_the_queues_are_on_disk(self) -> None:
        """As a crash leaves quorum queues that were new: RabbitMQ knows their names, and cannot recover them."""
        self.kill()
        for path in (self.folder / "data" / "rabbit@localhost" / "quorum" / "rabbit@localhost").iterdir():
            if path.is_dir():
                shutil.rmtree(path)

    def control(self, *arguments: str) -> str:
        """What `rabbitmqctl --quiet ARGUMENTS` prints; it takes a second or two."""
        command = [str(PROGRAMS / "rabbitmqctl"), "--quiet", *arguments]
        return subprocess.run(command, env=self.environment, check=True, capture_output=True, text=True).stdout

    def evaluate(self, expression: str) -> str:
        """In the server, within milliseconds: `control` takes a second or two of CPU for its own start."""
        cookie = (self.folder / ".erlang.cookie").read_text()
        command = ["erl_call", "-sname", "rabbit@localhost", "-c", cookie, "-e"]
        run = subprocess.run(
            command, input=f"{expression}.\n", env=self.environment, check=True, capture_output=True, text=True
        )
        return run.stdout

    def cut_connections(self) -> None:
        self.evaluate('rabbit_networking:close_all_connections("cut by the tests")')

    def messages(self) -> dict[str, int]:
        """By queue."""
        queues = 'rabbit_amqqueue:info_all(<<"/">>, [name, messages])'
        listed = self.evaluate(
            f"[{{binary_to_list(Name), Count}} || [{{name, {{_, _, _, Name}}}}, {{messages, Count}}] <- {queues}]"
        )
        return {name: int(count) for name, count in _MESSAGES.findall(listed)}

    def names_of(self, kind: str) -> set[str]:
        """Return the names of its queues, `amqqueue`, or of its exchanges, `exchange`."""
        listed = self.evaluate(f"[binary_to_list(Name) || {{_, _, _, Name}} <- rabbit_{kind}:list_names()]")
        return set(filter(None, _NAMES.findall(listed)))

    def close(self) -> None:
        self.kill()
        self.reaper.close()
        if self.names:
            self.names.wait()
        shutil.rmtree(self.folder)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, *command: str) -> subprocess.Popen[bytes]:
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                command,
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.reaper.add(process.pid, grace_s=5)
        return process

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def _is_ready(self) -> bool:
        assert self.process
        if self.process.poll() is not None:
            raise AssertionError(f"RabbitMQ ended with {self.process.returncode}:\n{self.log.read_text()[-2000:]}")
        return answers(self.port)


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False
