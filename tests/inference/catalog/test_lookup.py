"""The models file is followed: what it says is taken over once it is whole and without an error."""

import tempfile
import threading
from pathlib import Path
from unittest.mock import patch

from django.test import SimpleTestCase, override_settings

from inference.catalog import changes, lookup, reader, specs
from inference.catalog.lookup import ModelsFile
from inference.errors import UnknownModel
from tests.conditions import PATIENCE_S, eventually

A = '[a]\nengine = "x:Y"\n'
B = '[b]\nengine = "x:Y"\n'


class FileCase(SimpleTestCase):
    def setUp(self) -> None:
        self.path = Path(self.enterContext(tempfile.TemporaryDirectory())) / "models.toml"
        self.path.write_text(A)
        self.file = ModelsFile(self.path)
        self.first = self.file.read_first_catalog()
        self.file.reread_if_changed()

    def look(self, times: int = 2) -> None:
        for _ in range(times):
            self.file.reread_if_changed()


class FollowTests(FileCase):
    def test_two_looks_at_the_same_take_it_over(self) -> None:
        self.path.write_text(A + B)
        self.assertFalse(self.file.reread_if_changed())
        self.assertIs(self.file.catalog, self.first)
        self.assertTrue(self.file.reread_if_changed())
        self.assertEqual(list(self.file.catalog or ()), ["a", "b"])

    def test_what_an_editor_has_written_half_is_not_taken_over_though_it_is_valid(self) -> None:
        self.path.write_text(A + B)
        self.look()
        for half in (A, A + "[b", A + B):
            self.path.write_text(half)
            self.file.reread_if_changed()
            self.assertEqual(list(self.file.catalog or ()), ["a", "b"])
        self.file.reread_if_changed()
        self.assertEqual((self.file.problem, list(self.file.catalog or ())), ("", ["a", "b"]))

    def test_an_error_changes_nothing_and_is_logged_once_until_it_is_put_right(self) -> None:
        self.path.write_text(A + "max_batch_sise = 3\n")
        with self.assertLogs("inference.catalog.lookup", "ERROR") as logs:
            self.look(5)
        self.assertEqual(len(logs.records), 1)
        self.assertIn("line 3", self.file.problem)
        self.assertIs(self.file.catalog, self.first)
        self.path.write_text(A)
        self.look()
        self.assertEqual((self.file.problem, self.file.catalog), ("", self.first))

    def test_a_file_that_is_gone_changes_nothing(self) -> None:
        self.path.unlink()
        with self.assertLogs("inference.catalog.lookup", "ERROR"):
            self.look()
        self.assertIs(self.file.catalog, self.first)
        self.assertIn("models.toml", self.file.problem)

    def test_whatever_the_file_says_it_is_followed_on(self) -> None:
        bad = {
            "not valid TOML": f"max_batch_size = {'9' * 5000}\n",
            "too large": f"[a.parameters]\nk = {{ type = 'integer', max = inf, default = {'9' * 400} }}\n",
            "too deep": f"options.{'.'.join('a' * 5000)} = 1\n",
            "more than": "#" * reader.MAX_BYTES,
            "k needs a type": '[a.parameters.k]\ntype = ["string", "null"]\n',
            "items must be one of": '[a.parameters.k]\ntype = "array"\nitems = ["string"]\n',
        }
        for why, text in bad.items():
            self.path.write_text(A + text)
            with self.subTest(why), self.assertLogs("inference.catalog.lookup", "ERROR"):
                self.look()
                self.assertIn(why, self.file.problem)
                self.assertIs(self.file.catalog, self.first)

    def test_a_mark_at_the_beginning_of_the_file_says_nothing(self) -> None:
        self.path.write_text(A + B, encoding="utf-8-sig")
        self.look()
        self.assertEqual((self.file.problem, list(self.file.catalog or ())), ("", ["a", "b"]))

    def test_a_comment_changes_nothing(self) -> None:
        self.path.write_text(f"# better\n{A}")
        self.look()
        self.assertIs(self.file.catalog, self.first)

    def put_right(self) -> ModelsFile:
        """Return a file that has had an error since its process began, and has none any more."""
        self.path.write_text("[a")
        file = ModelsFile(self.path)
        with self.assertLogs("inference.catalog.lookup", "ERROR"):
            file.reread_if_changed()
            file.reread_if_changed()
        self.path.write_text(A)
        return file

    def test_a_file_that_was_never_good_is_used_once_it_is(self) -> None:
        file = self.put_right()
        file.reread_if_changed()
        file.reread_if_changed()
        self.assertEqual(list(file.catalog or ()), ["a"])

    def test_what_is_put_right_is_no_problem_though_a_request_reads_it_first(self) -> None:
        file = self.put_right()
        file.read_first_catalog()
        file.reread_if_changed()
        self.assertEqual(file.problem, "")


class ProcessTests(FileCase):
    def test_this_process_has_the_models_of_now(self) -> None:
        with override_settings(MODELS_FILE=self.path):
            self.assertIs(lookup.get_catalog(), lookup.get_catalog())
            self.path.write_text(B)
            follower = lookup.Follower()
            with self.assertLogs("inference.catalog.lookup", "INFO") as logs:
                follower.start()
                follower.look_at_file_soon()
                eventually(lambda: "b" in lookup.get_catalog(), "it is taken over")
                follower.stop()
            self.assertIn("added: b; removed: a", logs.output[-1])
            self.assertRaises(UnknownModel, lookup.get_spec, "a")
            last = lookup.get_last_spec("a")
            self.assertEqual((last and last.name, lookup.get_last_spec("c")), ("a", None))
        self.assertNotIn(follower, threading.enumerate())

    def test_a_bug_of_the_reader_does_not_end_the_follower(self) -> None:
        parse, met = reader.parse_catalog, threading.Event()

        def fail(text: str, file: str = "") -> specs.Catalog:
            if "# bug" in text:
                met.set()
                raise TypeError("unhashable type: 'list'")
            return parse(text, file)

        quick = patch.multiple(lookup, LOOK_S=0.01, SETTLE_S=0.01)
        with override_settings(MODELS_FILE=self.path), quick, patch.object(reader, "parse_catalog", fail):
            self.assertIn("a", lookup.get_catalog())
            follower = lookup.Follower()
            with self.assertLogs("inference.catalog.lookup", "ERROR"):
                self.path.write_text(f"{A}# bug\n")
                follower.start()
                self.assertTrue(met.wait(PATIENCE_S))
                self.path.write_text(A + B)
                eventually(lambda: "b" in lookup.get_catalog(), "it is taken over")
                follower.stop()


class ChangesTests(SimpleTestCase):
    def test_what_is_added_changed_and_removed_is_named(self) -> None:
        found = changes.compare_catalogs(
            reader.parse_catalog(A + B), reader.parse_catalog(A + 'revision = "2"\n' + B.replace("[b]", "[c]"))
        )
        self.assertEqual(str(found), "added: c; changed: a; removed: b")
        self.assertEqual(
            str(changes.compare_catalogs(reader.parse_catalog(A), reader.parse_catalog(A))), "nothing changes"
        )


class DigestTests(SimpleTestCase):
    def digests(self, text: str) -> tuple[str, str]:
        spec = reader.parse_catalog(A + text)["a"]
        return spec.digest, spec.load_digest

    def test_every_change_of_an_entry_is_another_digest(self) -> None:
        tables = ("", 'revision = "2"', "max_batch_size = 3", "options = { a = 1 }", "options = { a = 2026-11-23 }")
        parameters = ("[a.parameters]\nk = { type = 'string' }", "[a.parameters]\nk = { type = 'integer' }")
        self.assertEqual(len({self.digests(text)[0] for text in (*tables, *parameters)}), 7)

    def test_weights_are_loaded_again_for_what_loading_depends_on_only(self) -> None:
        same = ("", "max_batch_size = 3", "time_limit_s = 3", "[a.parameters]\nk = { type = 'string' }")
        other = ('revision = "2"', 'dtype = "float16"', "options = { a = 1 }", "max_length = 5")
        self.assertEqual(len({self.digests(text)[1] for text in same}), 1)
        self.assertEqual(len({self.digests(text)[1] for text in (*other, "")}), 5)

    def test_equal_catalogs_have_the_same_whatever_their_order(self) -> None:
        self.assertEqual(
            specs.digest_catalog(reader.parse_catalog(A + B)),
            specs.digest_catalog(reader.parse_catalog(f"# new\n{B}{A}")),
        )
        self.assertNotEqual(
            specs.digest_catalog(reader.parse_catalog(A)), specs.digest_catalog(reader.parse_catalog(A + B))
        )
