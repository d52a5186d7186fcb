"""A real Prometheus that asks two web servers of one service: it takes the rules, and the board counts all once."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any
from unittest import skipUnless

from django.conf import settings

from inference.models import PausedModel
from inference.status import attention
from tests.conditions import PATIENCE_S, eventually
from tests.e2e.case import StackCase
from tests.ports import HOST, free_port

DEPLOY = Path(settings.BASE_DIR) / "deploy"
PROMETHEUS = shutil.which("prometheus")
REPLICAS, WAITING = 2, 3
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: inference
    static_configs: [{{targets: ["{host}:{port}", "localhost:{port}"]}}]
"""


@skipUnless(PROMETHEUS or os.environ.get("CI"), "Prometheus is not installed: Debian's package prometheus")
class TestPrometheus(StackCase):
    options = {"replicas": REPLICAS, "environment": {"WORKER_HEARTBEAT_S": "0.5", "WORKER_SILENT_S": "6"}}

    def setUp(self) -> None:
        super().setUp()
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        rules = DEPLOY / "prometheus" / "rules.yml"
        config = folder / "prometheus.yml"
        config.write_text(CONFIG.format(rules=rules, host=HOST, port=self.stack.port))
        self.port = free_port()
        server = subprocess.Popen(
            [
                str(PROMETHEUS),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={HOST}:{self.port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        eventually(self.is_ready, "it answers")

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{HOST}:{self.port}/-/ready") as answer:
            return bool(answer.status == 200)
        return False

    def query_api(self, what: str, **query: str) -> Any:
        url = f"http://{HOST}:{self.port}/api/v1/{what}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return json.load(answer)["data"]

    def values(self, query: str) -> list[float]:
        return [float(found["value"][1]) for found in self.query_api("query", query=query)["result"]]

    def alerts(self) -> dict[str, str]:
        return {alert["labels"]["alertname"]: alert["state"] for alert in self.query_api("alerts")["alerts"]}

    def test_it_takes_the_rules_counts_once_and_alerts_on_a_worker_that_is_gone(self) -> None:
        PausedModel.objects.using(self.stack.alias).create(model="echo")
        eventually(lambda: self.stack.workers.get().catalog.models[0].held_back, "it is heeded")
        for number in range(WAITING):
            self.stack.submit(f"text {number}")
        eventually(lambda: self.values("up") == [1, 1], "both are asked")
        eventually(lambda: self.alerts().get("ModelPaused") == "pending", "it is paused")
        [group] = self.query_api("rules")["groups"]
        self.assertEqual([rule["name"] for rule in group["rules"]], list(attention.CODES))
        self.assertEqual({(rule["health"], rule.get("lastError", "")) for rule in group["rules"]}, {("ok", "")})
        wanted = {"Jobs that wait and run": [WAITING], "Replicas": [REPLICAS, 0]}
        eventually(lambda: wanted.items() <= self.board().items(), "the board shows them", every_s=1.0)
        self.stack.children["worker1"].kill()
        eventually(lambda: self.alerts().get("WorkerGone") == "firing", "it is told of")
        self.stack.start_worker()
        eventually(lambda: "WorkerGone" not in self.alerts(), "it is back")

    def board(self) -> dict[str, list[float]]:
        """Return what each panel shows, by its title."""
        panels = json.loads((DEPLOY / "grafana" / "board.json").read_text())["panels"]
        shown: dict[str, list[float]] = {}
        for panel in panels:
            for target in panel["targets"]:
                query = target["expr"].replace("$__rate_interval", "1m").replace("$model", ".*")
                shown.setdefault(panel["title"], []).extend(self.values(query))
        return shown
