"""The programs of one machine: broker, web server, worker, runner of batches and sender of webhooks."""

import os
import sys
from pathlib import Path

from tools.launcher.supervisor import Program


def _python_module(*arguments: str) -> tuple[str, ...]:
    """Return the command `python -m ...`, as the scripts of a virtual environment break if its path is long."""
    return (sys.executable, "-m", *arguments)


def make_broker(*, data: Path, socket: Path) -> Program:
    """Return the embedded broker, with its data in the folder `data`."""
    command = _python_module("inference.broker.embedded", "--data", str(data), "--socket", str(socket))
    return Program(name="broker", command=command, grace_s=10.0)


def make_web_server(*, host: str, port: int, blocking_threads: int = 512) -> Program:
    options = ("--interface", "wsgi", "--host", host, "--port", str(port), "--no-ws", "--log-level", "error")
    log = ("--log-config", "project/granian.json")
    threads = ("--blocking-threads", str(blocking_threads), "--backlog", "2048", "--workers-kill-timeout", "10")
    reload = ("--respawn-interval", "8", "--respawn-failed-workers")  # seconds for a new process to start when busy
    command = _python_module("granian", *options, *log, *threads, *reload, "project.wsgi:application")
    return Program(name="web", command=command)


def make_worker(*, name: str = "worker", devices: str = "auto", options: tuple[str, ...] = ()) -> Program:
    celery = ("celery", "--quiet", "-A", "project", "worker", "--without-mingle", "--without-gossip")
    own = ("--loglevel", os.environ.get("LOG_LEVEL", "INFO"), "-n", f"{name}@%h", "--devices", devices)
    return Program(name=name, command=_python_module(*celery, *own, *options), grace_s=30.0, hears_hangup=True)


def make_webhook_sender() -> Program:
    """Return the program that calls clients' servers. It runs no model."""
    return Program(name="webhooks", command=(sys.executable, "manage.py", "deliver_webhooks"), grace_s=20.0)


def make_batch_runner() -> Program:
    """Return the program that works on the batches of /v1/batches. It runs no model."""
    return Program(name="batches", command=(sys.executable, "manage.py", "run_batches"), grace_s=20.0)
