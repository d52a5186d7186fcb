"""What calls cost on four kinds of machine, and how long the jobs of three kinds of traffic are."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.workloads import FEWEST_WORDS, MEDIAN_WORDS, MOST_WORDS, SIGMA

# Seconds that a call of `size` items of `length` tokens takes


def cpu(size: int, length: float) -> float:
    """all-MiniLM-L6-v2 in float32 on one thread, fitted to measured calls: large batches leave the caches."""
    tokens = size * length
    return 0.0105 + tokens * (0.160e-3 + 0.045e-3 * tokens / (tokens + 1000))


def gpu(size: int, length: float) -> float:
    """Bound by its launches until the tokens fill the device, then proportional to them."""
    return math.pow(0.008**4 + (size * length * 2.5e-6) ** 4, 0.25)


def tiny(size: int, length: float) -> float:
    """Two layers of 128: nearly all is overhead, of the call and of its items."""
    return 0.0012 + 0.00008 * size + 0.000002 * size * length


def compiled(size: int, length: float) -> float:
    """all-MiniLM-L6-v2 by OpenVINO in int8 on one thread: a text alone is nearly free, many tokens at once are dear."""
    tokens = size * length
    full = (tokens / 2500) ** 2
    return 0.0004 + tokens * (0.066e-3 + 0.08e-3 * full / (full + 1))


@dataclass(frozen=True, slots=True)
class Machine:
    seconds: Callable[[int, float], float]
    padded: bool = True  # to the longest item; else each costs its own
    call_s: float = 0.0  # around each call, its claim, record and notice,
    job_s: float = 0.0  # and for each of its jobs


MACHINES = {
    "cpu": Machine(cpu),
    "gpu": Machine(gpu, call_s=0.002, job_s=0.0002),  # as a child takes on a host, about
    "tiny": Machine(tiny),
    "compiled": Machine(compiled, padded=False),
}


def noise(chance: random.Random) -> float:
    """A measured call against the same call alone: a few percent, and now and then something gets in its way."""
    return chance.lognormvariate(0.0, 0.08) * (chance.uniform(1.5, 5.0) if chance.random() < 0.02 else 1.0)


# Tokens of one job


def short(chance: random.Random) -> int:
    return chance.randint(8, 20)


def mixed(chance: random.Random) -> int:
    """As in `make bench`: log-normal, and two tokens that every text gets."""
    words = round(chance.lognormvariate(math.log(MEDIAN_WORDS), SIGMA))
    return 2 + min(MOST_WORDS, max(FEWEST_WORDS, words))


def bimodal(chance: random.Random) -> int:
    return chance.randint(8, 20) if chance.random() < 0.8 else chance.randint(200, 300)


LENGTHS: dict[str, Callable[[random.Random], int]] = {"short": short, "mixed": mixed, "bimodal": bimodal}
