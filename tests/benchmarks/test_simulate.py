"""The batching policy against others, in simulated time: the same figures on every machine."""

import io
import json
from contextlib import redirect_stdout
from statistics import mean
from typing import Any
from unittest import TestCase

from benchmarks import simulate
from benchmarks.simulator.policies import POLICIES
from benchmarks.simulator.simulation import Result, Scenario, Simulation
from benchmarks.simulator.workloads import LENGTHS, MACHINES

PADDED = [name for name, machine in MACHINES.items() if machine.padded]


def run(policy: str, machine: str, lengths: str, **values: Any) -> Result:
    scenario = Scenario(**{"machine": machine, "lengths": lengths, "jobs": 800, **values})
    return Simulation(scenario, POLICIES[policy]()).run()


class PolicyTests(TestCase):
    def test_ours_is_never_slower_than_one_at_a_time(self) -> None:
        for machine in PADDED:
            for lengths in LENGTHS:
                with self.subTest(machine=machine, lengths=lengths):
                    ours, alone = (run(policy, machine, lengths) for policy in ("ours", "one at a time"))
                    self.assertGreater(ours.items_per_s, 1.4 * alone.items_per_s)

    def test_ours_answers_sooner_than_one_at_a_time_under_random_arrivals(self) -> None:
        for machine in PADDED:
            load = 0.8 * run("one at a time", machine, "mixed").items_per_s
            ours, alone = (
                run(policy, machine, "mixed", items_per_s=load, jobs=2000) for policy in ("ours", "one at a time")
            )
            with self.subTest(machine):
                self.assertLess(ours.p50_ms, alone.p50_ms)
                self.assertLess(ours.p99_ms, alone.p99_ms)

    def test_ours_beats_every_other_way_on_mixed_lengths(self) -> None:
        for machine in PADDED:
            ours = run("ours", machine, "mixed", jobs=2000)
            for policy in POLICIES.keys() - {"ours"}:
                with self.subTest(machine=machine, policy=policy):
                    self.assertGreater(ours.items_per_s, 1.05 * run(policy, machine, "mixed", jobs=2000).items_per_s)

    def test_on_a_cpu_arrival_order_is_slower_than_no_batching_and_ours_is_three_times_as_fast(self) -> None:
        ours, alone, first_come = (run(policy, "cpu", "mixed") for policy in ("ours", "one at a time", "first come"))
        self.assertLess(first_come.items_per_s, alone.items_per_s)
        self.assertGreater(ours.items_per_s, 3 * first_come.items_per_s)

    def test_where_a_text_alone_is_nearly_free_no_batches_form_that_do_not_pay(self) -> None:
        for lengths in LENGTHS:
            ours, alone, first_come = (
                run(policy, "compiled", lengths, jobs=4000) for policy in ("ours", "one at a time", "first come")
            )
            with self.subTest(lengths):
                self.assertGreater(ours.items_per_s, alone.items_per_s)
                self.assertGreater(ours.items_per_s, 0.99 * first_come.items_per_s)
            if lengths == "bimodal":  # where large batches cost a fifth more than their texts apart
                self.assertLess(first_come.items_per_s, 0.8 * alone.items_per_s)
                self.assertLess(ours.mean_batch, 8)

    def test_the_slowest_answers_come_no_later_than_one_at_a_time(self) -> None:
        for machine in PADDED:
            with self.subTest(machine):
                ours, alone = (self._mean_p99_ms(policy, machine) for policy in ("ours", "one at a time"))
                self.assertLess(ours, alone)

    def _mean_p99_ms(self, policy: str, machine: str) -> float:
        return mean(run(policy, machine, "mixed", jobs=2000, seed=seed).p99_ms for seed in range(1, 5))

    def test_every_job_is_answered_once(self) -> None:
        for policy in POLICIES:
            with self.subTest(policy):
                simulation = Simulation(
                    Scenario(machine="tiny", lengths="mixed", jobs=500, replicas=3), POLICIES[policy]()
                )
                simulation.run()
                self.assertEqual(len(simulation.tally.latencies_s), 500)


class CommandTests(TestCase):
    def output(self, *options: str) -> str:
        printed = io.StringIO()
        with redirect_stdout(printed):
            simulate.main(["--machine", "cpu", "--lengths", "mixed", "--jobs", "200", *options])
        return printed.getvalue()

    def test_the_same_seed_gives_the_same_figures(self) -> None:
        self.assertEqual(self.output("--seed", "3"), self.output("--seed", "3"))
        self.assertNotEqual(self.output("--seed", "3"), self.output("--seed", "4"))

    def test_json_says_what_the_table_says(self) -> None:
        comparisons = json.loads(self.output("--json"))
        self.assertEqual([c["arrivals"] for c in comparisons], ["32 clients", "Poisson at 50%", "Poisson at 80%"])
        self.assertEqual(list(comparisons[0]["results"]), list(POLICIES))
        self.assertIn(f"{comparisons[0]['results']['ours']['items_per_s']:.1f}", self.output())
