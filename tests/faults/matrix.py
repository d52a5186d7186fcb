"""The rows of the fault matrix, in its order, and where those are that are not played here."""

from __future__ import annotations

from tests.faults import broker, clients, database, inputs, kills, messages, pipelines, soak, space, steps
from tests.faults.fault import Fault

FAULTS: tuple[type[Fault], ...] = (
    kills.WorkerKilled,
    kills.WorkerKilledAtDefaults,
    kills.ChildKilled,
    pipelines.Transformers,
    kills.RollingRestart,
    kills.WorkerStopped,
    inputs.Hang,
    inputs.Memory,
    inputs.Poison,
    inputs.Errors,
    broker.BrokerKilled,
    broker.BrokerForgets,
    broker.QuietModelForgotten,
    broker.BrokerStalls,
    broker.ConnectionsCut,
    broker.Partition,
    space.BrokerFull,
    space.DiskFull,
    database.Locked,
    database.Stopped,
    steps.Step,
    clients.Leaving,
    clients.Waiting,
    messages.Malformed,
    clients.SameKey,
    clients.Cancelling,
    clients.Greedy,
    soak.Soak,
)

ELSEWHERE = {  # rows of HTTP and of the engines, by number: what they are, and where they are tested
    "20": ("malformed HTTP", "tests/api/test_wire.py and tests/api/fuzz.py"),
    "21": ("slow and oversized bodies", "tests/api/test_wire.py"),
    "22": ("who may do what", "tests/api/test_who_may_what.py"),
    "23": ("scripts in text fields", "tests/inference/test_admin.py"),
    "24": ("unsafe weights", "tests/inference/engines/test_loading.py"),
}
