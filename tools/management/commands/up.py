"""The command `manage.py up`, which runs the whole service, for development and small machines."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import threading
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from inference.broker import address, embedded, embedded_data_folder
from inference.telemetry import logs
from inference.telemetry.control_characters import escape_text
from tools.launcher import programs
from tools.launcher.startup_report import StartupReport
from tools.launcher.supervisor import Program, Supervisor, raise_open_files_limit

COLOURS = {"up": 36, "broker": 35, "web": 34, "worker": 32}


class LogOutput:
    """The one log of all programs.

    Each line begins with the name of its program. Lines that are meant for the reader do not.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def __call__(self, name: str, line: str) -> None:
        with self.lock:
            try:
                print(
                    logs.format_program_json_line(name, line)
                    if logs.IS_JSON
                    else f"{self.format_head(name)}{escape_text(line)}",
                    flush=True,
                )
            except BrokenPipeError:  # the process that read this output is gone
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                os.kill(os.getpid(), signal.SIGTERM)
            except OSError:  # the disk that the output goes to is full: a line is lost, and the service goes on
                pass

    def format_head(self, name: str) -> str:
        if not name:
            return ""
        head = f"{name:<6} |"
        return f"\033[{COLOURS.get(name, 37)}m{head}\033[0m " if self.coloured else f"{head} "


class Command(BaseCommand):
    help = "Run everything: migrations, the embedded broker, one worker and the web server. Ctrl-C stops all."
    requires_system_checks: tuple[str, ...] = ()  # those of Django 6 open the database, whose folder is looked at first

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default=os.environ.get("HOST", "127.0.0.1"), help="HOST, default 127.0.0.1")
        parser.add_argument(
            "--port", type=parse_port, default=os.environ.get("PORT", "8000"), help="PORT, default 8000"
        )

    def handle(self, *args: Any, host: str, port: int, **options: Any) -> None:
        refuse_taken_port(host, port)
        refuse_unwritable_folder()
        self.check()
        warn_of_open_access(host)
        migrate_database()
        raise_open_files_limit()
        log = LogOutput()
        service = Supervisor(log)
        for number in (signal.SIGINT, signal.SIGTERM):
            # In a thread of its own: the main thread, which runs signal handlers, may hold the event's own lock.
            signal.signal(number, lambda *_: threading.Thread(target=service.stop).start())
        hung_up = make_hangup_handler(service, had_terminal=sys.stdin.isatty())
        signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=hung_up).start())
        service.start(list_programs(host, port))
        StartupReport(host=host, port=port, log=log, stopping=service.stopping).start()
        service.run()


def make_hangup_handler(service: Supervisor, *, had_terminal: bool) -> Callable[[], None]:
    """Return the function to call at SIGHUP.

    If the terminal was closed, it ends the service. Otherwise the worker looks at models.toml.
    """

    def hung_up() -> None:
        if had_terminal and not sys.stdin.isatty():
            service.stop()
        else:
            service.pass_on_hangup()

    return hung_up


def list_programs(host: str, port: int) -> list[Program]:
    """Return the programs in the order in which they start.

    With REDIS_URL set, the embedded broker is not among them.
    """
    own = [programs.make_worker(), programs.make_web_server(host=host, port=port), programs.make_batch_runner()]
    if settings.WEBHOOK_HOSTS:
        own.append(programs.make_webhook_sender())
    return own if os.environ.get("REDIS_URL") else [prepare_embedded_broker(), *own]


def prepare_embedded_broker() -> Program:
    socket_path = address.make_embedded_socket_path(settings.DATA_DIR)
    if embedded.is_answering(socket_path):
        raise CommandError(
            f"A service with the data of {settings.DATA_DIR} runs already: its broker answers on {socket_path}. Stop it"
            " first, or give this one another folder, as DATA_DIR."
        )
    return programs.make_broker(data=settings.DATA_DIR / "broker", socket=socket_path)


def parse_port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65_535:
        raise ArgumentTypeError(f"PORT must be a whole number from 1 to 65535, not {text!r}")
    return int(text)


def refuse_taken_port(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, UnicodeError) as error:
            raise CommandError(describe_listen_error(host, port, error)) from error


def describe_listen_error(host: str, port: int, error: Exception) -> str:
    number = getattr(error, "errno", None)
    if number == errno.EADDRINUSE:
        return f"Something listens on {host} port {port} already. Choose another: make run PORT={port % 65_535 + 1}"
    if number in (errno.EACCES, errno.EPERM):
        return f"Only root may listen on port {port}. Choose one above 1023: make run PORT=8000"
    return f"HOST: {host} is no address of this machine. Leave it out for 127.0.0.1, or take 0.0.0.0 for all of them"


def refuse_unwritable_folder() -> None:
    """Raise `CommandError` if DATA_DIR is needed and cannot be written.

    The error comes once and here, before each program fails for that reason in its own words, again and again.
    """
    if {"DATABASE_URL", "REDIS_URL"} <= os.environ.keys():
        return
    folder = settings.DATA_DIR
    try:
        embedded_data_folder.require_writable_folder(folder)
    except OSError as error:
        raise CommandError(
            f"DATA_DIR {folder} cannot be written: {error.strerror}. Free some space, make it writable, or choose"
            " another folder."
        ) from error


def warn_of_open_access(host: str) -> None:
    if host not in ("127.0.0.1", "::1", "localhost") and not settings.API_KEY_REQUIRED:
        print(
            f"Every client that reaches {host} may use this service: set API_KEY_REQUIRED=1 to require keys.",
            file=sys.stderr,
        )


def migrate_database() -> None:
    try:
        call_command("migrate", interactive=False, verbosity=0)
    except DatabaseError as error:
        name = settings.DATABASES["default"]["NAME"]
        raise CommandError(f"The database {name} cannot be used: {error}. DATABASE_URL says where it is.") from error
