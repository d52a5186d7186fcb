"""The rules and the board in deploy/ speak of metrics that there are, and their tools take them."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from unittest import skipUnless

from django.conf import settings
from django.test import TestCase
from prometheus_client.parser import text_string_to_metric_families as parsed

from inference.figures import tallies
from inference.figures.rollup import SINCE_EVER
from inference.models import Figure, Grain, Worker, WorkerState
from inference.status import attention, metrics

DEPLOY = Path(settings.BASE_DIR) / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
PROMTOOL = shutil.which("promtool")
needed = skipUnless(PROMTOOL or os.environ.get("CI"), "promtool is not installed: Debian's package prometheus")
NAME = re.compile(r"\binference_[a-z_]+")


def rules() -> list[tuple[str, str, str, str]]:
    """Name, query, what is wrong and what to do of each."""
    one = r"- alert: (\w+)\n +expr: (.+)\n(?: +(?:for|labels|annotations):.*\n)+ +summary: (.+)\n +description: (.+)\n"
    return re.findall(one, RULES.read_text())


class TestMonitoring(TestCase):
    def setUp(self) -> None:
        tally: tallies.Tally = {"ended": {"succeeded": 1}, "real": 1, "padded": 1, "tokens": 1, "engine_s": 1.0}
        tally["cost"] = {"off_s": 0.1, "real_s": 1.0}
        for name in ("wait", "run", "first", "batch"):
            tallies.add_value(tally, name, 1.0)
        Figure.objects.create(grain=Grain.EVER, start=SINCE_EVER, model="m", tally=tally)
        Figure.objects.create(grain=Grain.EVER, start=SINCE_EVER, model="", tally={"refused": {"queue_full": 1}})
        replicas = {"0": {"device": "cpu", "memory": {"m": 1}}}
        Worker.objects.create(name="w", pid=1, state=WorkerState.READY, replicas=replicas)
        self.text = metrics.format_metrics().decode()

    def names(self) -> set[str]:
        families = list(parsed(self.text))
        return {sample.name for family in families for sample in family.samples} | {
            f"{family.name}_total" if family.type == "counter" else family.name for family in families
        }

    def test_each_thing_that_needs_attention_has_an_alert_with_the_thing_to_do(self) -> None:
        self.assertEqual([name for name, *_ in rules()], list(attention.CODES))
        for name, query, *_ in rules()[1:]:
            self.assertIn(f'code="{name}"', query)

    def test_rules_and_board_speak_of_metrics_that_there_are(self) -> None:
        board = json.loads((DEPLOY / "grafana" / "board.json").read_text())
        queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        queries += [query for _, query, *_ in rules()]
        metric_names = {name for query in queries for name in NAME.findall(query)}
        self.assertGreater(len(metric_names), 15)
        self.assertEqual(metric_names - self.names(), set())
        places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
        self.assertEqual(len(set(places)), len(places))

    def test_each_line_of_the_board_is_named_by_what_its_query_keeps(self) -> None:
        board = json.loads((DEPLOY / "grafana" / "board.json").read_text())
        for target in (target for panel in board["panels"] for target in panel["targets"]):
            kept = re.search(r"\bby \(([^)]*)\)", target["expr"])
            labels = {name for name in kept[1].split(", ") if name != "le"} if kept else set()
            with self.subTest(target["expr"]):
                self.assertEqual(set(re.findall(r"{{(\w+)}}", target["legendFormat"])), labels)

    def test_what_several_web_servers_report_is_added_up_once(self) -> None:
        """Each tells all: only shares of sums stay right where they are counted twice."""
        board = json.loads((DEPLOY / "grafana" / "board.json").read_text())
        queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        sums = [query for query in queries if re.match(r"sum\b", query) and " / " not in query]
        self.assertGreater(len(sums), 2)
        self.assertEqual([query for query in sums if "(max without (instance) (" not in query], [])

    @needed
    def test_promtool_takes_the_rules_and_the_names(self) -> None:
        subprocess.run([str(PROMTOOL), "check", "rules", str(RULES)], check=True, capture_output=True)
        found = subprocess.run(
            [str(PROMTOOL), "check", "metrics"], input=self.text, text=True, check=False, capture_output=True
        )
        self.assertEqual((found.returncode, found.stdout, found.stderr), (0, "", ""))

    @needed
    def test_promtool_takes_the_queries_of_the_board(self) -> None:
        board = json.loads((DEPLOY / "grafana" / "board.json").read_text())
        queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        filled = [query.replace("$__rate_interval", "1m").replace("$model", ".*") for query in queries]
        group = {"name": "board", "rules": [{"record": f"q{place}", "expr": expr} for place, expr in enumerate(filled)]}
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            json.dump({"groups": [group]}, file)  # which is YAML, too
            file.flush()
            subprocess.run([str(PROMTOOL), "check", "rules", file.name], check=True, capture_output=True)
