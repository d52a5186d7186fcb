"""A worker's row is read and written by two versions during an upgrade."""

from __future__ import annotations

import json
from typing import Any

from django.core import serializers
from django.db.models import TextField
from django.db.models.functions import Cast
from django.test import TestCase

from inference.fields.worker_documents import LOADING, CatalogSnapshot, ModelState, ReplicaModel
from inference.models import Worker

ENTRY = {
    "name": "a", "model": "x/y", "revision": "1", "digest": "d", "state": "failed", "why": "no weights",
    "memory": 7, "held_back": False, "failures": 2,
}  # fmt: skip
LAZY = {
    "name": "b", "model": "x/y", "revision": "", "digest": "e", "state": "not loaded", "why": "",
    "memory": 9, "held_back": True, "load_s": 1.5,
}  # fmt: skip
COLUMNS: dict[str, Any] = {  # as the version before writes them, and "facts", which that does not read
    "replicas": {
        "0": {
            "pid": 7, "device": "cuda:0", "chosen": "all GPUs", "ended": 1, "withdrawn_s": 30,
            "models": {"a": "no weights", "b": "ready", "c": LOADING}, "notes": {"b": "in float16"}, "memory": {"b": 5},
            "facts": {"b": {"pooling": "mean"}},
        },
        "1": {
            "pid": None, "device": "cuda:1", "chosen": "all GPUs", "ended": 0, "withdrawn_s": 0,
            "models": {}, "notes": {}, "memory": {}, "facts": {},
        },
    },
    "catalog": {"digest": "d", "problem": "line 3: no.", "models": [ENTRY, LAZY]},
    "reached": {"a": {"1": 5.5, "2": 7.0}},
    "generation": {
        "a": {"rows": 1, "room": 2, "tokens": 3, "tokens_per_s": 0.5, "first_token_s": {"p50": None, "p95": None}}
    },
    "costs": {
        "a": {"weights": [1.0, 2.0], "overhead_s": 0.5, "job_s": 0.1, "calls": 3, "seen": [[1, 2.0, 0.5]]},
    },
}  # fmt: skip


class WorkerDocumentTests(TestCase):
    def make_row(self, **columns: Any) -> Worker:
        return Worker.objects.get(pk=Worker.objects.create(name="w", pid=1, **columns).pk)

    def test_documents_are_written_as_they_were_read_and_as_the_version_before_writes_them(self) -> None:
        row = self.make_row(**COLUMNS)
        row.save()
        for column, expected in COLUMNS.items():
            with self.subTest(column):
                text = Worker.objects.values_list(Cast(column, TextField()), flat=True).get()
                self.assertEqual(json.loads(text), expected)

    def test_a_row_without_documents_has_empty_ones(self) -> None:
        for row in (self.make_row(catalog=None, generation=None, costs=None), self.make_row()):
            self.assertEqual((row.catalog, row.generation, row.costs), (CatalogSnapshot(), {}, {}))

    def test_what_another_version_does_not_write_has_its_default_and_what_only_it_writes_is_left_out(self) -> None:
        row = self.make_row(
            replicas={"0": {"device": "cpu", "models": {"a": "ready"}, "of a later version": 1}},
            catalog={"models": [{"name": "a", "state": "of a later version", "of a later version": 1}]},
            costs={"a": {}},
            generation={"a": {}},
        )
        self.assertEqual((row.costs["a"].weights, row.generation["a"].first_token_s.p50), ((), None))
        self.assertEqual(row.replicas["0"].models, {"a": ReplicaModel(ModelState.READY)})
        self.assertEqual((row.replicas["0"].pid, row.replicas["0"].ended), (None, 0))
        (entry,) = row.catalog.models
        self.assertEqual((entry.state, entry.failures, entry.held_back), (ModelState.LOADING, None, False))
        self.assertEqual((row.costs["a"].job_s, row.costs["a"].seen), (0.0, ()))

    def test_a_row_is_dumped_as_json(self) -> None:
        row = self.make_row(**COLUMNS)
        (dumped,) = json.loads(serializers.serialize("json", [row]))
        self.assertEqual({name: dumped["fields"][name] for name in COLUMNS}, COLUMNS)
