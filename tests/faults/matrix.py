"""The rows of the fault matrix, in its order, and where those are that are not played here."""

from __future__ import annotations

from tests.faults import (
    broker,
    broker_data,
    clients,
    company,
    database,
    drill,
    generating,
    hour,
    inputs,
    kills,
    loading,
    messages,
    outages,
    pipelines,
    soak,
    space,
    steps,
)  # fmt: skip
from tests.faults.backends import POSTGRES, RABBITMQ, Backends
from tests.faults.fault import Fault

FAULTS: tuple[type[Fault], ...] = (
    kills.WorkerKilled,
    kills.WorkerKilledUnderLists,
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
    generating.ManyOpen,
    messages.Malformed,
    clients.SameKey,
    clients.Cancelling,
    clients.Greedy,
    soak.Soak,
    outages.PoolOfFour,
    outages.PoolOfThirtyTwo,
    inputs.Unstorable,
    loading.ChildCannotLoad,
    outages.BrokerAwayForLong,
    broker_data.LostUnderLowQueue,
    inputs.PoisonousForDevices,
    outages.HostLost,
    outages.LongerThanSilence,
    loading.ModelCannotLoad,
    loading.Joining,
    broker_data.Unreadable,
    generating.ChildKilled,
    generating.WorkerKilled,
    generating.BrokerAway,
    generating.Cancelled,
    generating.Poison,
    generating.ReadersGone,
    generating.ReadersStalled,
    generating.WebKilled,
    company.InCompany,
    hour.HourOfStreams,
    drill.OfAService,
    drill.OfADatabase,
)

# A quick run plays a trial of these rows on other stacks, besides: of those in which the stack plays a part.
BESIDES = {
    Backends(database=POSTGRES): ("2", "9", "30", "36"),
    Backends(database=POSTGRES, broker=RABBITMQ): ("1", "9", "10", "12", "19"),
    Backends(ahead=True): ("1", "2", "5", "6", "7", "8"),
}

ELSEWHERE = {  # rows of HTTP and of the engines, by number: what they are, and where they are tested
    "20": ("malformed HTTP", "tests/api/test_wire.py and tests/api/fuzz.py"),
    "21": ("slow and oversized bodies", "tests/api/test_wire.py"),
    "22": ("who may do what", "tests/api/test_who_may_what.py"),
    "23": (
        "scripts and formulas in text fields, inputs and secrets in logs",
        "tests/inference/admin/test_hostile.py and tests/e2e/test_logs.py",
    ),
    "24": ("unsafe weights", "tests/inference/engines/test_loading.py"),
}
