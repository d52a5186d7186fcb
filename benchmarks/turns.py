"""Shows what lazy models cost that share too little memory, in simulated time: loads and waits, at random arrivals.

One replica, ten models of which three fit. "no turns" gives way at once to whatever waits, the least recently used
first.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from unittest.mock import patch

from benchmarks.simulator.turns import Arrival, LazyModel, Outcome, Turns
from inference.residency_policy import change_choice

POLICIES: Mapping[str, Mapping[str, float]] = {
    "ours": {},
    "no turns": {"TURN": 0.0, "LINGER": 0.0},
    "turns of 2 loads": {"TURN": 2.0},
    "turns of 32 loads": {"TURN": 32.0},
}
RATES = (0.1, 1.0, 10.0, 30.0)  # jobs a second
HEADER = (
    f"{'jobs/s':>7}  {'popularity':<11}{'policy':<18}{'loads':>7}{'mean s':>9}{'p99 s':>9}{'max s':>9}{'done s':>9}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    models: int = 10
    jobs_per_s: float = 1.0
    seconds: float = 600.0
    skew: float = 0.0  # exponent of Zipf's law; 0: all are asked for alike
    seed: int = 1

    @property
    def names(self) -> list[str]:
        return [f"model{number}" for number in range(self.models)]

    def arrivals(self) -> list[Arrival]:
        """Poisson."""
        chance, at_s, found = random.Random(self.seed), 0.0, []
        weights = [1 / (rank + 1) ** self.skew for rank in range(self.models)]
        while (at_s := at_s + chance.expovariate(self.jobs_per_s)) < self.seconds:
            found.append(Arrival(at_s, chance.choices(self.names, weights)[0]))
        return found


def run(traffic: Traffic, *, room: int, load_s: float, call_s: float, rules: Mapping[str, float]) -> Outcome:
    model = LazyModel(memory=1, load_s=load_s, call_s=call_s)
    with patch.dict(vars(change_choice), rules):
        return Turns(dict.fromkeys(traffic.names, model), traffic.arrivals(), room).run()


def lines(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    for rate in RATES:
        for skew, popularity in ((0.0, "alike"), (1.0, "Zipf")):
            traffic = Traffic(jobs_per_s=rate, skew=skew, seed=options.seed)
            for name, rules in POLICIES.items():
                found = run(traffic, room=options.fit, load_s=options.load_s, call_s=options.call_s, rules=rules)
                yield {
                    "jobs_per_s": rate,
                    "popularity": popularity,
                    "policy": name,
                    "loads": len(found.loads),
                    "mean_s": round(found.mean_wait_s, 1),
                    "p99_s": round(found.p99_wait_s, 1),
                    "max_s": round(max(found.waits_s), 1),
                    "done_s": round(found.ended_s),
                }


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.turns", description=__doc__)
    parser.add_argument("--fit", type=int, default=3, help="models that fit at once, of ten (%(default)s)")
    parser.add_argument("--load-s", type=float, default=5.0, help="seconds that a load takes (%(default)s)")
    parser.add_argument("--call-s", type=float, default=0.1, help="seconds that a batch of up to 8 takes (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same figures (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    found = lines(options)
    if options.json:
        print(json.dumps(list(found), indent=1))
        return
    print(HEADER)
    for line in found:
        print(
            "{jobs_per_s:>7}  {popularity:<11}{policy:<18}{loads:>7}{mean_s:>9}{p99_s:>9}{max_s:>9}{done_s:>9}".format(
                **line
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
