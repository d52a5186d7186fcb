"""The measurements as a table, a plot in characters, and lines for models.toml."""

import math
from collections.abc import Iterator, Mapping

from inference.catalog import tasks
from inference.catalog.sizes.lengths import CHAT_TOKENS
from inference.catalog.specs import TF32, TORCH, ModelSpec
from inference.engines.artifacts.memory import MIB
from tools.tuning.measurements import Arrangement, Grid, Measurement, Variant
from tools.tuning.replica import ANSWER

BLOCKS = " ▏▎▍▌▋▊▉█"
BAR = 40  # characters of the longest bar
WORTH = 0.97  # of the best rate: a larger batch must gain more than the rest, as it makes its first item wait longer
SAME = 0.99  # share of the answers that must be the same for a choice to be recommended
SLACK = 20  # a call may take this many times the slowest measured one before it counts as stuck
SLACK_OF_STEPS = 2
MIN_TIME_LIMIT_S = 10


def format_table(grid: Grid, unit: str = "items") -> Iterator[str]:
    """Yield the table of items or tokens per second, with a row for each length and a column for each batch size."""
    yield f"{f'{unit}/s':<10}" + "".join(f"{f'x {size}':>10}" for size in grid.sizes) + "   ms of one"
    for length in grid.lengths:
        rates = [grid.items_per_s(size, length) for size in grid.sizes]
        cells = [
            f"{rate:10.1f}" if rate else f"{_absent(grid, size, length):>10}"
            for size, rate in zip(grid.sizes, rates, strict=True)
        ]
        yield f"{f'{length} tokens':<10}" + "".join(cells) + f"{1000 * grid.seconds[1, length]:12.1f}"
    if grid.mixed:
        rates = [size / grid.mixed[size] if size in grid.mixed else None for size in grid.sizes]
        yield f"{'mixed':<10}" + "".join(f"{rate:10.1f}" if rate else f"{'-':>10}" for rate in rates)


def format_steps(grid: Grid) -> Iterator[str]:
    """Yield the table of milliseconds per step.

    It has a line for each length of the prompts, and a column for each number of rows.
    """
    yield "ms        " + "".join(f"{f'x {size}':>10}" for size in grid.sizes)
    for length in grid.lengths:
        took = [grid.seconds.get((size, length)) for size in grid.sizes]
        yield f"{f'{length} tokens':<10}" + "".join(f"{1000 * s:10.0f}" if s else f"{'-':>10}" for s in took)


def format_plot(grid: Grid) -> Iterator[str]:
    """Yield the plot of what batching gains: for each length, the rate by batch size against one at a time."""
    for length in grid.lengths:
        rates = {size: rate for size in grid.sizes if (rate := grid.items_per_s(size, length))}
        best = max(rates.values())
        yield f"{length} tokens"
        for size, rate in rates.items():
            yield f"  x {size:<4} {format_bar(rate / best):<{BAR}} {rate / rates[1]:5.2f} times one at a time"


def format_bar(share: float) -> str:
    eighths = round(share * BAR * 8)
    return "█" * (eighths // 8) + BLOCKS[eighths % 8].strip()


def find_knee(grid: Grid, length: int) -> int:
    """Return the smallest batch size whose rate at this length is near the best (`WORTH`)."""
    rates = {size: rate for size in grid.sizes if (rate := grid.items_per_s(size, length))}
    best = max(rates.values())
    return min(size for size, rate in rates.items() if rate >= WORTH * best)


def make_catalog_lines(spec: ModelSpec, grid: Grid) -> list[str]:
    """Return the lines for models.toml of a model that does not generate step by step.

    They are limits only: within them the service itself learns, call by call, what is worth batching.
    """
    knees = {length: find_knee(grid, length) for length in grid.lengths}
    tokens = max(size * length for length, size in knees.items())
    fitting = [size * length - 1 for size, length in grid.too_large]
    slowest = max(grid.seconds.values())
    return [
        f"[{spec.name}]",
        f"max_batch_size = {max(knees.values())}",
        f"max_batch_tokens = {min([max(tokens, spec.max_length), *fitting])}",
        f"time_limit_s = {max(MIN_TIME_LIMIT_S, math.ceil(SLACK * slowest))}",
    ]


def make_generating_lines(spec: ModelSpec, grid: Grid) -> list[str]:
    """Return the lines for models.toml of a model that generates step by step.

    They allow rows until more of them bring no more tokens, cache for these rows, and time for the longest answer
    beside them.
    """
    rows, longest = max(find_knee(grid, length) for length in grid.lengths), max(grid.lengths)
    fitting = [size * (length + ANSWER) - 1 for size, length in grid.too_large]
    step_s = max(seconds for (size, _), seconds in grid.seconds.items() if size <= rows)
    shared = tasks.find_task(spec.task).parameters["max_new_tokens"]
    most = spec.parameters.get("max_new_tokens", shared).max or CHAT_TOKENS
    limit_s = math.ceil(SLACK_OF_STEPS * step_s * most)
    return [
        f"[{spec.name}]",
        f"max_batch_size = {rows}",
        f"max_batch_tokens = {min([rows * (longest + ANSWER), *fitting])}"
        f"  # of prompts of {longest} tokens and answers of {ANSWER}",
        f"time_limit_s = {max(MIN_TIME_LIMIT_S, limit_s)}  # of an answer of {most:g} tokens",
    ]


Trials = Mapping[Variant, Measurement]


def format_trials_table(trials: Trials, unit: str) -> Iterator[str]:
    """Yield the table of the trials, with a row for each choice and arrangement.

    A row has the rates by batch size and their mean, by which one is recommended. It also has the memory of a replica,
    and how near the answers are to those of the first choice.
    """
    sizes = sorted({size for trial in trials.values() for rates in trial.rates.values() for size in rates})
    heads = "".join(f"{f'x {size}':>10}" for size in sizes) + f"{'mean':>10}"
    width = max(10, *(len(choice.precision) for choice in trials)) + 1
    titles = f"{'backend':<10}{'precision':<{width}}{'replicas x threads':<20}"
    yield f"{titles}{heads} {unit}/s       MiB      answers   numbers"
    for choice, trial in trials.items():
        start = f"{choice.backend:<10}{choice.precision:<{width}}"
        if trial.problem:
            yield start + trial.problem
        for arrangement, rates in trial.rates.items():
            cells = "".join(f"{rates[size]:10.1f}" for size in sizes) + f"{compute_geometric_mean(rates):10.1f}"
            yield (
                f"{start}{f'{arrangement.replicas} x {arrangement.threads}':<20}{cells}{'':>{len(unit) + 3}}"
                f"{trial.memory / MIB:10.0f}{f'{trial.same} of {trial.answers}':>13}{trial.largest_change:10.2g}"
            )


def format_trials_plot(trials: Trials) -> Iterator[str]:
    """Yield the plot of the rate of each choice in its best arrangement."""
    best = {
        choice: max(map(compute_geometric_mean, trial.rates.values()))
        for choice, trial in trials.items()
        if trial.rates
    }
    most, width = max(best.values()), max(10, *(len(choice.precision) for choice in best))
    for choice, rate in best.items():
        yield f"{choice.backend:<10}{choice.precision:<{width}} {format_bar(rate / most):<{BAR}} {rate:.1f}"


def choose_trial(trials: Trials) -> tuple[Variant, Arrangement]:
    """Return the fastest choice and arrangement of those whose answers are the same but for their numbers.

    The answers of torch in float32 always are.
    """
    fit = [(choice, trial) for choice, trial in trials.items() if trial.rates and trial.share >= SAME]
    pairs = [
        (compute_geometric_mean(rates), choice, arrangement)
        for choice, trial in fit
        for arrangement, rates in trial.rates.items()
    ]
    _, choice, arrangement = max(pairs, key=lambda pair: pair[0])
    return choice, arrangement


def compute_geometric_mean(rates: Mapping[int, float]) -> float:
    """Return the geometric mean, in which all batch sizes count alike."""
    return math.exp(sum(math.log(max(rate, 1e-9)) for rate in rates.values()) / len(rates))


def make_choice_lines(spec: ModelSpec, trials: Trials) -> list[str]:
    """Return the lines for models.toml that replace what the model's table there says of its backend and precision.

    To accept rounded numbers is the user's decision, so that a comment says what answers the user would get.
    """
    choice, _ = choose_trial(trials)
    trial = trials[choice]
    says = spec.backend != TORCH or bool(spec.precision)
    if choice.precision == "float32" and choice.backend == TORCH and not says and spec.dtype == "auto":
        return []
    why = f"  # {trial.same} of {trial.answers} answers are the same, numbers move by up to {trial.largest_change:.2g}"
    is_of_torch = choice.backend == TORCH and (choice.precision == TF32 or not says)
    backend = [f'backend = "{choice.backend}"'] if {choice.backend, spec.backend} != {TORCH} else []
    return [*backend, f'{"dtype" if is_of_torch else "precision"} = "{choice.precision}"{why}']


def _absent(grid: Grid, size: int, length: int) -> str:
    return "too large" if any(size >= s and length >= n for s, n in grid.too_large) else "-"
