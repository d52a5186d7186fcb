"""Changes of many rows go through one module, which locks them in order."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from unittest import TestCase

from django.conf import settings

CHANGES = ("update", "delete")
ELSEWHERE = {  # by file, the rows that are changed there
    "inference/store/transitions.py": {"Job.objects.filter(pk__in=[job_id for job_id, _, _ in held])"},  # are locked
    "inference/figures/rollup.py": {"Figure.objects.filter(pk__in=[figure.pk for figure in found])"},  # are locked
    "api/key_usage.py": {"KeyUse.objects.filter(key_id=pk, hour=hour)"},  # is one row
}


def changed(source: str) -> Iterator[str]:
    """Yield the rows that a source changes in one statement, but for a single row that is named by its key."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            rows = ast.unparse(node.func.value)
            if ".objects" in rows and not re.search(r"\bpk=", rows):
                yield rows


class QueriesTests(TestCase):
    def test_many_rows_are_changed_by_what_locks_them_in_order(self) -> None:
        root = Path(settings.BASE_DIR)
        paths = (path for name in ("api", "inference", "project") for path in (root / name).rglob("*.py"))
        found: dict[str, set[str]] = {}
        for path in paths:
            if "migrations" not in path.parts and (rows := set(changed(path.read_text()))):
                found[str(path.relative_to(root))] = rows
        self.assertEqual(found, ELSEWHERE)

    def test_such_a_change_is_found(self) -> None:
        source = "Job.objects.filter(pk__in=ids).update(status=1)\nJob.objects.filter(pk=job).update(status=1)"
        self.assertEqual(list(changed(source)), ["Job.objects.filter(pk__in=ids)"])
