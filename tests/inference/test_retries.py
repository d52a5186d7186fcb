"""There is no retry without a bound or a growing pause: each loop that tries again is listed with the one it has.

A loop is listed when it catches errors or pauses; so is every option that lets a library try again.
"""

import ast
import unittest
from collections.abc import Iterator

from django.conf import settings

FOLDERS = ("inference", "api", "tools", "project", "batch_inference_client")
PAUSES = {"sleep", "wait", "take_next_pause_s"}
OPTIONS = {"retry", "max_retries", "connection_retries", "autoretry_for", "retry_on_timeout", "connection_max_retries"}

LISTED = {
    "inference/broker/other_broker_publisher.py _make_transport_options": "once more, at once",
    "inference/broker/redis_client.py _make_client": "once more, at once",
    "api/management/commands/run_batches.py run_until": "growing pauses; else a look every LOOK_EVERY_S",
    "api/management/commands/run_batches.py update_worked_at": "every SEEN_EVERY_S, whatever happens",
    "batch_inference_client/client.py answer": "nothing is tried again: whoever asked gets the error",
    "batch_inference_client/file_batches.py FileBatches.wait_for_batch": "looks until the batch ends; patiently",
    "batch_inference_client/service.py retry_while_passing": "growing pauses, limit_s",
    "batch_inference_client/stream.py follow_events": "growing pauses, patience_s without a sign of life",
    "batch_inference_client/mapping.py Map.batches": "growing pauses, patience_s without progress",
    "batch_inference_client/watch.py Watch._run": "each round waits for what is left; patiently",
    "inference/catalog/lookup.py Follower.run": "a look every LOOK_S, which concerns nobody else",
    "inference/engines/artifacts/disk_cache.py _hold_lock": "a look every LOOK_S, for WAIT_S",
    "inference/engines/generation/pipeline_stepper.py PipelineStepper._make_room_for_next_tokens": "fewer rows each",
    "inference/connection_retries.py retry_while_away": "growing pauses, limit_s",
    "tools/launcher/reaper.py end_group": "waits for an end: grace_s, then it is killed",
    "inference/status/workers.py Remembered.__call__": "each round ends another request, whose time was spent",
    "inference/streams/hub.py StreamHub._listen_forever": "growing pauses",
    "inference/submission/bulk.py wait": "each round waits for another job; timeout_s",
    "inference/submission/jobs.py wait_for_any": "timeout_s",
    "inference/submission/idempotency.py store_once": "each round ends another request, which stored nothing",
    "inference/web_process/writer.py Writer._wait_for_group": "waits for submissions",
    "inference/web_process/writer.py Writer._write_forever": "what failed is refused, not tried again",
    "inference/management/commands/deliver_webhooks.py _deliver_until": "growing pauses; a notice has its schedule",
    "inference/management/commands/status.py Command.handle": "looks again until Ctrl-C",
    "inference/management/commands/reload.py Command._wait_for_workers": "looks at rows until --timeout",
    "inference/web_process/finish_listener.py Listener._listen_forever": "growing pauses",
    "inference/web_process/finish_listener.py Listener._poll_until": "the deadline of its caller",
    "tools/launcher/supervisor.py Child.stop": "waits for an end: grace_s, then it is killed",
    "tools/launcher/supervisor.py Supervisor.run": "looks after programs, whose restarts have growing pauses",
    "tools/launcher/startup_report.py StartupReport.wait_until": "growing pauses, until the operator stops it",
    "inference/worker/processes/process_launcher.py ProcessLauncher._run_tasks": "each round has another task",
    "inference/worker/processes/process_launcher.py ProcessLauncher._start_process": "once more; then growing pauses",
    "inference/worker/processes/replica_process.py ReplicaProcess.read_messages": "each round has other bytes",
    "inference/worker/child/work_ahead.py WorkAheadLoop._answer_calls": "each round has another call",
    "inference/web_process/request_figures.py RequestFigures._record_forever": "once a tick",
    "inference/worker/child/batch_run.py BatchRun.compute_answers": "waits for what reads, within the batch's limit",
    "inference/worker/maintenance/heartbeat.py Heartbeat.run": "growing pauses up to the heartbeat's own",
    "inference/worker/maintenance/housekeeping.py Housekeeping._wait_for_round": "a round every ROUND_S",
    "inference/worker/scheduling/demand_poller.py DemandPoller.run": "growing pauses while the database is away",
    "inference/worker/scheduling/unfetched_job_finder.py UnfetchedJobFinder.run": "LONGEST_PAUSE_S after a failure",
    "project/stalled_clients.py _limit_once_it_listens": "LISTENS_S",
    "project/settings.py": "Celery's connection to the broker: its pauses grow by 2 s up to 30 s",
}


def places() -> Iterator[str]:
    """`file function` of each loop and option."""
    for folder in FOLDERS:
        for path in sorted((settings.BASE_DIR / folder).rglob("*.py")):
            name = path.relative_to(settings.BASE_DIR).as_posix()
            for scope, node in _scoped(ast.parse(path.read_text()), ""):
                if _tries_again(node):
                    yield f"{name} {scope}".rstrip()


def _scoped(tree: ast.AST, scope: str) -> Iterator[tuple[str, ast.AST]]:
    """Every node with the name of the class and function around it."""
    for node in ast.iter_child_nodes(tree):
        yield scope, node
        inner = getattr(node, "name", "") if isinstance(node, ast.FunctionDef | ast.ClassDef) else ""
        yield from _scoped(node, f"{scope}.{inner}".strip(".") if inner else scope)


def _tries_again(node: ast.AST) -> bool:
    if isinstance(node, ast.While):
        return any(_catches(inner) or _pauses(inner) for inner in ast.walk(node))
    if isinstance(node, ast.For):
        return any(_pauses(inner) for inner in ast.walk(node))
    if isinstance(node, ast.Assign):
        return any(_is_setting(target) for target in node.targets)
    if isinstance(node, ast.Dict):
        return any(isinstance(key, ast.Constant) and key.value in OPTIONS - {"retry"} for key in node.keys)
    return isinstance(node, ast.keyword) and node.arg in OPTIONS


def _is_setting(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and target.id.startswith("CELERY") and "RETR" in target.id


def _catches(node: ast.AST) -> bool:
    return isinstance(node, ast.Try) and bool(node.handlers)


def _pauses(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    return getattr(node.func, "attr", getattr(node.func, "id", "")) in PAUSES


class RetryTests(unittest.TestCase):
    maxDiff = None

    def test_every_loop_that_tries_again_is_listed_with_its_bound_or_its_growing_pause(self) -> None:
        self.assertEqual(sorted(set(places())), sorted(LISTED))

    def test_a_new_loop_is_seen(self) -> None:
        for loop in (
            "while True:\n try: f()\n except OSError: pass",
            "while f():\n time.sleep(1)",
            "for _ in x:\n time.sleep(1)",
            "f(max_retries=9)",
        ):
            self.assertTrue(any(_tries_again(node) for node in ast.walk(ast.parse(loop))), loop)
