"""Rows 9 to 13: a broker that dies, forgets, stalls, hangs up, or is far away."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

from tests.faults.backends import REDIS
from tests.faults.fault import Fault
from tests.faults.proxy import Mode, Proxy
from tests.faults.service import Service
from tests.faults.trial import ANSWER_LIMIT_S, Trial
from tests.ports import HOST


def answers_meanwhile(trial: Trial, seconds: float) -> None:
    """Ask for pages for so many seconds, and expect each of them, in time."""
    until = time.monotonic() + seconds
    while True:
        for path in ("/v1/models", "/v1/jobs"):
            started = time.monotonic()
            status = trial.service.get(path).status
            took_s = time.monotonic() - started
            trial.expect(status == 200, f"GET {path} was answered with {status}")
            trial.in_time(took_s, ANSWER_LIMIT_S, f"GET {path}")
        left = until - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(0.3, left))


class BrokerKilled(Fault):
    row, title, ci, full = "9", "broker SIGKILL, back after 0, 1, 10 s", 2, 30
    takes_s, shares = 9.0, True
    AWAY_S = (0.0, 1.0, 10.0)

    def trial(self, trial: Trial) -> None:
        with trial.load(per_s=60) as load:
            trial.pause(0.3, 1.0)
            trial.service.broker.kill()
            answers_meanwhile(trial, self.AWAY_S[trial.number % 3])
            trial.service.broker.start()
            trial.healed()
            trial.pause(0.2, 0.6)
        trial.add(load, answer_limit_s=ANSWER_LIMIT_S)


class BrokerForgets(Fault):
    row, title, ci, full = "10", "broker loses its data: FLUSHALL, or one queue", 2, 30
    takes_s, shares = 4.0, True

    def trial(self, trial: Trial) -> None:
        with trial.load(per_s=150) as load:
            trial.pause(0.3, 1.5)
            if trial.number % 2 or trial.service.rabbit:
                trial.service.broker.forget("inference.echo")
            else:
                trial.service.flush()
            trial.broken()
            trial.pause(0.0, 0.3)
        trial.add(load)


class QuietModelForgotten(Fault):
    """Nothing else of its model comes along to show that it was passed, and the worker is never idle."""

    row, title, ci, full = "10", "the only message of a model is lost beside a busy model", 1, 5
    shares = True
    chunk = 5

    def trial(self, trial: Trial) -> None:
        with trial.load(per_s=120) as load:
            trial.until_running()
            job = trial.store("slow")  # as if accepted, and its message gone
            trial.broken()
            trial.until(lambda: not trial.service.unfinished([job]), "the lost job is found", 60)
        trial.add(load)


class BrokerStalls(Fault):
    row, title, ci, full = "11", "broker stalls: SIGSTOP for 4 and 20 s, CLIENT PAUSE", 1, 10
    takes_s, shares = 14.0, True
    brokers = (REDIS,)
    recovery_limit_s = 60.0
    STALLS_S = (4.0, 20.0)

    def trial(self, trial: Trial) -> None:
        with trial.load(per_s=40, clients=20) as load:
            trial.pause(0.3, 0.8)
            if trial.number % 3 == 2:
                self.pause_clients(trial, 5.0)
            else:
                self.stop_process(trial, self.STALLS_S[trial.number % 3])
            trial.healed()
            trial.pause(0.2, 0.6)
        trial.add(load, answer_limit_s=ANSWER_LIMIT_S)

    def stop_process(self, trial: Trial, seconds: float) -> None:
        pid = trial.service.children["broker"].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            answers_meanwhile(trial, seconds)
        finally:
            os.kill(pid, signal.SIGCONT)

    def pause_clients(self, trial: Trial, seconds: float) -> None:
        with contextlib.closing(trial.service.redis()) as client:
            client.execute_command("CLIENT", "PAUSE", int(seconds * 1000), "ALL")
        answers_meanwhile(trial, seconds)


class ConnectionsCut(Fault):
    row, title, ci, full = "12", "connections cut, 10 times", 1, 30
    takes_s, shares = 4.0, True

    def trial(self, trial: Trial) -> None:
        with trial.load(per_s=100) as load:
            for _ in range(10):
                trial.pause(0.05, 0.4)
                trial.service.broker.cut_connections()
            trial.broken()
            trial.pause(0.1, 0.3)
        trial.add(load, answer_limit_s=ANSWER_LIMIT_S)


class Partition(Fault):
    row, title, ci, full = "13", "partition, cut, latency, half-open connections", 2, 20
    takes_s = 18.0
    brokers = (REDIS,)
    recovery_limit_s = 60.0
    chunk = 4
    MODES = (Mode.HOLD, Mode.SILENT, Mode.CUT, Mode.SLOW)

    @contextlib.contextmanager
    def service(self) -> Iterator[Service]:
        with Proxy() as proxy:
            service = self.make(environment={"REDIS_URL": f"redis://{HOST}:{proxy.port}/0"})
            proxy.target = service.socket
            self.proxy = proxy
            with service:
                yield service

    def trial(self, trial: Trial) -> None:
        mode = self.MODES[trial.number % len(self.MODES)]
        with trial.load(per_s=40) as load:
            trial.pause(0.3, 0.8)
            with self.proxy.failing(mode):
                answers_meanwhile(trial, trial.random.uniform(3.0, 10.0))
            trial.healed()
            trial.pause(0.2, 0.6)
        trial.add(load, answer_limit_s=ANSWER_LIMIT_S)
