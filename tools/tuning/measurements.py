"""The measurements, in their order: a grid of shapes, then backends and precisions, replicas against threads."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from inference.catalog import tasks
from inference.catalog.sizes import length_estimates, lengths
from inference.catalog.specs import BACKENDS, PRECISIONS, TF32, TORCH, TRANSFORMERS_ENGINE, ModelSpec
from inference.engines.backends import packages
from inference.engines.runtime.json_values import pair_leaves
from tools.tuning.replica import (  # fmt: skip
    ANSWER,
    CannotMeasure,
    Replica,
    Setup,
    answer_inputs,
    generates_by_steps,
    measure_call_s,
    measure_generation_rate,
    measure_items_per_s,
    measure_memory,
    measure_step_s,
    read_engine_note,
    wait_for_result,
)

LENGTHS = {
    length_estimates.estimate_tokens: (8, 32, 128, 512),
    length_estimates.estimate_frames: (50, 250, 1500),  # 1, 5 and 30 seconds
    length_estimates.estimate_patches: (1,),
}
PROMPTS = (32, 256)  # tokens
TYPICAL = 32  # tokens, for measurements at one length only
SENTENCES = "inference.engines.embeddings:"
SLOWEST_S = 5.0  # a shape that is expected to take longer is left out
MOST_ITEMS = 4096  # the largest batch size that models.toml may name
GAIN = 1.03  # factor in items/s by which twice as many items must be better for still more to be tried
HALVINGS = 2  # sizes that are tried between one that fits and one that does not

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The unit of measurement: calls of so many items, or steps of so many rows, which bring a token each."""

    name: str
    seconds: Callable[[int, int, float], float | None]
    rate: Callable[[int, int, float], float]


ITEMS = Unit(name="items", seconds=measure_call_s, rate=measure_items_per_s)
TOKENS = Unit(name="tokens", seconds=measure_step_s, rate=measure_generation_rate)


def find_unit(replica: Replica) -> Unit:
    return TOKENS if replica.run_measurement(generates_by_steps) else ITEMS


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The seconds of one call, by (items, length). A shape that did not fit is in `too_large`."""

    seconds: dict[tuple[int, int], float] = field(default_factory=dict)
    too_large: list[tuple[int, int]] = field(default_factory=list)
    mixed: dict[int, float] = field(default_factory=dict)  # seconds of a call with all lengths together, by items

    @property
    def sizes(self) -> list[int]:
        return sorted({size for size, _ in self.seconds})

    @property
    def lengths(self) -> list[int]:
        return sorted({length for _, length in self.seconds})

    def items_per_s(self, size: int, length: int) -> float | None:
        seconds = self.seconds.get((size, length))
        return size / seconds if seconds else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """A number of replicas, and the threads of each."""

    replicas: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A backend that may compute the model, and a precision."""

    backend: str
    precision: str

    def from_setup(self, setup: Setup) -> Setup:
        spec = dataclasses.replace(setup.spec, backend=self.backend, precision=self.precision)
        if self.backend == TORCH:
            spec = dataclasses.replace(spec, precision="", dtype=self.precision)
        return dataclasses.replace(setup, spec=spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The results of a choice. `problem` says why it does not compute the model; the other fields are empty then."""

    problem: str = ""
    memory: int = 0  # bytes of a replica
    same: int = 0  # answers that differ from those of torch in float32 at most in their numbers
    answers: int = 0  # answers that were compared
    largest_change: float = 0.0  # of any number in the answers
    rates: dict[Arrangement, dict[int, float]] = field(default_factory=dict)  # items or tokens a second, by batch size

    @property
    def share(self) -> float:
        return self.same / self.answers if self.answers else 0.0


def choose_lengths(spec: ModelSpec, own_inputs: Sequence[Any]) -> list[int]:
    """Return three lengths of the user's own inputs, or lengths that inputs of the task can have."""
    if own_inputs:
        found = sorted({lengths.measure_inputs(spec, value)[1] for value in own_inputs})
        return sorted({found[0], found[len(found) // 2], found[-1]})
    task = tasks.find_task(spec.task)
    wanted = PROMPTS if task.generates else LENGTHS[task.unit]
    longest = spec.max_length or wanted[-1]
    return sorted({min(length, longest) for length in wanted})


def choose_sizes(spec: ModelSpec) -> list[int]:
    """Return powers of two, up to twice the catalog's batch size, so that a limit that is too low shows."""
    return [1 << power for power in range(int(math.log2(2 * spec.max_batch_size)) + 1)]


def enlarge_cache(setup: Setup) -> Setup:
    """Return the setup with enough cache for all that is measured, if the model generates."""
    if not tasks.find_task(setup.spec.task).generates:
        return setup
    # A prompt has some tokens more than its text.
    longest = 2 * max(choose_lengths(setup.spec, setup.own_inputs)) + ANSWER
    tokens = max(setup.spec.max_batch_tokens, choose_sizes(setup.spec)[-1] * longest)
    return dataclasses.replace(setup, spec=dataclasses.replace(setup.spec, max_batch_tokens=tokens))


def measure_grid(
    replica: Replica,
    unit: Unit,
    sizes: Sequence[int],
    all_lengths: Sequence[int],
    budget_s: float,
    step: Progress,
    *,
    on_gpu: bool = False,
) -> Grid:
    found = Grid()
    for length in all_lengths:
        for size in _sizes(found, sizes, length) if on_gpu and unit is ITEMS else sizes:
            step(f"{size} items of {length}")
            if _is_hopeless(found, size, length):
                continue
            took_s = replica.run_measurement(unit.seconds, size, length, budget_s)
            if took_s is not None:
                found.seconds[size, length] = took_s
            elif size > 1:
                found.too_large.append((size, length))
            else:
                raise CannotMeasure(f"Not even one item of {length} tokens fits in memory: lower max_length.")
    if on_gpu and unit is ITEMS and len(all_lengths) > 1:
        _mix(found, replica, all_lengths, budget_s, step)
    return found


def _sizes(found: Grid, sizes: Sequence[int], length: int) -> Iterator[int]:
    """Yield the sizes to measure at this length.

    First come `sizes`, then twice as many items each time while they bring more a second. If a size did not fit, there
    follows the size halfway between it and the largest that did, twice at most. The caller records in `found` what came
    of each size before it takes the next.
    """
    yield from sizes
    size = sizes[-1]
    while 2 * size <= MOST_ITEMS and _gains(found, size, length):
        size *= 2
        yield size
    for _ in range(HALVINGS):
        fits = max((size for size, own in found.seconds if own == length), default=0)
        large = min((size for size, own in found.too_large if own == length), default=0)
        if not fits or large - fits <= max(1, fits // 4):
            return
        yield (fits + large) // 2


def _gains(found: Grid, size: int, length: int) -> bool:
    """Return True if so many items bring more a second than half as many."""
    rate, half = found.items_per_s(size, length), found.items_per_s(size // 2, length)
    return rate is not None and half is not None and rate >= GAIN * half


def _mix(found: Grid, replica: Replica, all_lengths: Sequence[int], budget_s: float, step: Progress) -> None:
    """Measure batches with all lengths in one, padded to the longest of them if the model pads."""
    for size in found.sizes:
        step(f"{size} items of mixed lengths")
        if size < len(all_lengths) or _is_hopeless(found, size, all_lengths[-1]):
            continue
        took_s = replica.run_measurement(measure_call_s, size, tuple(all_lengths), budget_s)
        if took_s is None:
            return
        found.mixed[size] = took_s


def _is_hopeless(found: Grid, size: int, length: int) -> bool:
    """Return True if a shape is larger than one that did not fit, or twice as large as one that was already slow."""
    if any(size >= large and length >= long for large, long in found.too_large):
        return True
    half = found.seconds.get((size // 2, length))
    return half is not None and 2 * half > SLOWEST_S


def list_arrangements(setup: Setup, cores: int) -> list[Arrangement]:
    """Return the arrangements to measure.

    On a CPU these are one replica with all cores, replicas with a core each, and one between. On a GPU more replicas
    hide the gaps of one.
    """
    if not setup.is_on_cpu:
        return [Arrangement(replicas=count, threads=max(1, cores // count)) for count in (1, 2, 4)]
    counts = sorted({1, max(1, cores // 2), cores})
    return [Arrangement(replicas=count, threads=max(1, cores // count)) for count in counts]


def list_variants(setup: Setup) -> list[Variant]:
    """Return the choices that this task, device and installation have.

    The first is torch in float32, with which the others are compared. The precision of a custom engine is its own, and
    no other backends are tried with it.
    """
    spec = setup.spec
    precisions = ("float32", "bfloat16") if setup.is_on_cpu else ("float32", TF32, "bfloat16")
    found = [Variant(backend=TORCH, precision=precision) for precision in precisions]
    ours = spec.engine == TRANSFORMERS_ENGINE or spec.engine.startswith(SENTENCES)
    if (
        not setup.is_on_cpu
        or not ours
        or (spec.engine == TRANSFORMERS_ENGINE and not tasks.find_task(spec.task).compiles)
    ):
        return found
    others = [Variant(backend=name, precision=one) for name in BACKENDS if name != TORCH for one in PRECISIONS]
    return found + [one for one in others if not packages.find_problem(one.from_setup(setup).spec)]


def measure_variant(
    setup: Setup,
    unit: Unit,
    choice: Variant,
    expected: Sequence[Any] | None,
    all_arrangements: Sequence[Arrangement],
    sizes: Sequence[int],
    budget_s: float,
    step: Progress,
) -> tuple[Measurement, Sequence[Any]]:
    """Measure a choice. Return its results, and its answers, with which those of the next choices are compared."""
    setup = choice.from_setup(setup)
    rates: dict[Arrangement, dict[int, float]] = {}
    found, memory = expected or [], 0
    for arrangement in all_arrangements:
        step(f"{choice.backend} in {choice.precision}, {arrangement.replicas} x {arrangement.threads} threads")
        try:
            with _replicas(setup, arrangement) as replicas:
                first = replicas[0]
                said = first.run_measurement(read_engine_note)
                if packages.REFUSED in said:
                    return Measurement(problem=said), found
                if not memory:
                    memory = first.run_measurement(measure_memory)
                    found = first.run_measurement(answer_inputs, choose_lengths(setup.spec, setup.own_inputs))
                rates[arrangement] = measure_throughput(setup, unit, replicas, sizes, budget_s)
        except CannotMeasure:
            if setup.is_on_cpu or not rates:
                raise
            break  # only fewer replicas fit in the memory of the GPU
    changes = [list(compare_answers(*both)) for both in zip(expected or found, found, strict=True)]
    return Measurement(
        memory=memory,
        same=sum(math.inf not in moved for moved in changes),
        answers=len(changes),
        largest_change=max((change for moved in changes for change in moved if change < math.inf), default=0.0),
        rates=rates,
    ), found


@contextmanager
def _replicas(setup: Setup, arrangement: Arrangement) -> Iterator[list[Replica]]:
    setup = dataclasses.replace(setup, threads=arrangement.threads)
    with ExitStack() as stack:
        replicas = [stack.enter_context(Replica(setup)) for _ in range(arrangement.replicas)]
        for replica in replicas:
            replica.wait_until_loaded()
        yield replicas


def measure_throughput(
    setup: Setup, unit: Unit, replicas: Sequence[Replica], sizes: Sequence[int], budget_s: float
) -> dict[int, float]:
    """Return the items or tokens per second of all replicas together, at a typical length, by batch size.

    Rows that generate are shared out among the replicas.
    """
    length, rates = find_typical_length(setup), {}
    for size in sizes:
        own = max(1, size // len(replicas)) if unit is TOKENS else size
        futures = [replica.start_measurement(unit.rate, own, length, budget_s) for replica in replicas]
        rates[size] = sum(map(wait_for_result, futures))
    return rates


def find_typical_length(setup: Setup) -> int:
    return min(choose_lengths(setup.spec, setup.own_inputs), key=lambda length: abs(length - TYPICAL))


def compare_answers(first: Any, second: Any) -> Iterator[float]:
    """Yield how far each number of an answer moved, and infinity for each other value that changed."""
    for left, right in pair_leaves(first, second):
        if isinstance(left, float) and isinstance(right, float):
            yield abs(left - right)
        elif left != right:
            yield math.inf
