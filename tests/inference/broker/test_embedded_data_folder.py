"""What the embedded server finds in its folder: another version's files, broken ones, no room."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import TestCase, skipUnless

import redis

from inference.broker import address, embedded_data_folder
from inference.broker.embedded_data_folder import EmbeddedBrokerError
from tests.conditions import PATIENCE_S, eventually
from tests.embedded_broker import EmbeddedBroker

WRITTEN_BY = Path(__file__).parent / "written_by"  # a base file with the first message, and a log with the second
BASE = "appendonlydir/appendonly.aof.2.base.rdb"
LOG = "appendonlydir/appendonly.aof.2.incr.aof"
MANIFEST = "appendonlydir/appendonly.aof.manifest"


def mount_small_disk(test: TestCase, folder: Path, size: str) -> None:
    """On the folder, until the test ends."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        test.skipTest("no file system can be mounted here")
    test.addCleanup(lambda: subprocess.run(["umount", folder], check=True))


class StorageTests(TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=address.find_temporary_folder()))
        self.addCleanup(shutil.rmtree, self.folder)
        self.data, self.socket = self.folder / "data", self.folder / "run" / "broker.sock"

    def written_by(self, server: str) -> Path:
        shutil.copytree(WRITTEN_BY / server, self.data, dirs_exist_ok=True)
        return self.data

    def start(self) -> list[bytes]:
        """What the queue holds once the server answers, newest first."""
        broker = EmbeddedBroker(self.data, self.socket)
        broker.start()
        try:
            with redis.Redis.from_url(broker.url) as client:
                messages: list[bytes] = client.lrange("queue", 0, -1)
                client.lpush("queue", "new")
        finally:
            broker.stop()
        assert broker.process
        self.assertEqual(broker.process.returncode, 0)
        return messages

    def kept(self) -> list[Path]:
        return sorted(self.data.glob("unreadable-*"))

    def assert_set_aside(self, file: str) -> None:
        content = (self.data / file).read_bytes() if (self.data / file).is_file() else b""
        with self.assertLogs("inference.broker.embedded_data_folder", "WARNING") as logs:
            self.assertEqual(self.start(), [])
        [kept] = self.kept()
        if content:
            self.assertEqual((kept / file).read_bytes(), content)
        [line] = logs.output
        self.assertIn(str(kept), line)
        self.assertIn("sent again", line)
        self.assertEqual(self.start(), [b"new"])

    def test_what_older_servers_wrote_is_read(self) -> None:
        for server in ("redis-6.2", "redis-7.0", "valkey-9"):
            with self.subTest(server):
                shutil.rmtree(self.data, ignore_errors=True)
                self.written_by(server)
                self.assertEqual(self.start(), [b"second", b"message"])
                self.assertEqual(self.kept(), [])

    def test_what_valkey_8_wrote_is_read(self) -> None:
        """Its base files have the format 11 of Redis 7.2."""
        base = self.written_by("redis-7.0") / BASE
        base.write_bytes(base.read_bytes().replace(b"REDIS0010", b"REDIS0011")[:-8] + bytes(8))  # without a checksum
        self.assertEqual(self.start(), [b"second", b"message"])
        self.assertEqual(self.kept(), [])

    def test_what_a_newer_server_wrote_is_set_aside(self) -> None:
        base = self.written_by("valkey-9") / BASE
        base.write_bytes(base.read_bytes().replace(b"VALKEY080", b"VALKEY099"))
        self.assert_set_aside(BASE)

    def test_a_file_of_garbage_is_set_aside(self) -> None:
        for file in (BASE, LOG, MANIFEST):
            with self.subTest(file):
                shutil.rmtree(self.data, ignore_errors=True)
                (self.written_by("valkey-9") / file).write_bytes(b"\x81garbage\n" * 30)
                self.assert_set_aside(file)

    def test_a_file_that_is_missing_or_half_there_is_set_aside(self) -> None:
        for file in (BASE, MANIFEST):
            for keep in (None, 20):
                with self.subTest(file, keep=keep):
                    shutil.rmtree(self.data, ignore_errors=True)
                    path = self.written_by("valkey-9") / file
                    if keep is None and file == BASE:
                        path.unlink()
                    else:
                        os.truncate(path, keep or 0)
                    self.assert_set_aside(file)

    def test_of_a_log_without_its_end_the_rest_is_read(self) -> None:
        log = self.written_by("valkey-9") / LOG
        os.truncate(log, log.stat().st_size - 5)
        self.assertEqual(self.start(), [b"message"])
        self.assertEqual(self.kept(), [])

    def test_three_are_kept(self) -> None:
        for number in range(5):
            (self.data / f"unreadable-2020-01-0{number + 1}T00-00-00Z").mkdir(parents=True)
        (self.written_by("valkey-9") / MANIFEST).write_text("nonsense\n")
        with self.assertLogs("inference.broker.embedded_data_folder", "WARNING"):
            self.start()
        names = [path.name for path in self.kept()]
        self.assertEqual(len(names), embedded_data_folder.KEPT)
        self.assertEqual(names[:2], ["unreadable-2020-01-04T00-00-00Z", "unreadable-2020-01-05T00-00-00Z"])

    def test_a_folder_that_cannot_be_made_is_named(self) -> None:
        (self.folder / "file").touch()
        self.data = self.folder / "file" / "data"
        with self.assertRaisesRegex(EmbeddedBrokerError, f"{self.data}.*Not a directory.*Make"):
            self.start()

    def test_a_server_that_does_not_start_for_another_reason_loses_nothing(self) -> None:
        self.written_by("valkey-9")
        calls: list[Path] = []

        def never(folder: Path) -> str:
            calls.append(folder)
            return "Out of files"

        with self.assertRaisesRegex(EmbeddedBrokerError, "Out of files"):
            embedded_data_folder.make_folder_usable(self.data, never)
        self.assertEqual(len(calls), 2)  # with the data, and without
        self.assertEqual((self.kept(), (self.data / BASE).exists()), ([], True))

    def test_the_program_sets_aside_and_serves(self) -> None:
        (self.written_by("valkey-9") / MANIFEST).write_text("nonsense\n")
        command = [sys.executable, "-m", "inference.broker.embedded", "--data", str(self.data)]
        command += ["--socket", str(self.socket)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
            self.addCleanup(process.kill)
            with redis.Redis.from_url(f"unix://{self.socket}") as client:
                eventually(lambda: self.answers(client), "the server answers")
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=PATIENCE_S)
        self.assertIn("set aside", errors)
        self.assertEqual(len(self.kept()), 1)

    def answers(self, client: redis.Redis) -> bool:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False

    @skipUnless(os.geteuid() == 0, "only root may mount a small disk")
    def test_a_full_disk_and_a_read_only_one_say_what_to_do_and_lose_nothing(self) -> None:
        self.data.mkdir()
        mount_small_disk(self, self.data, "256k")
        self.written_by("valkey-9")
        (self.data / "ballast").write_bytes(bytes(shutil.disk_usage(self.data).free))
        with self.assertRaisesRegex(EmbeddedBrokerError, f"{self.data}: No space left on device. Free some space"):
            self.start()
        (self.data / "ballast").unlink()
        subprocess.run(["mount", "-o", "remount,ro", self.data], check=True)
        with self.assertRaisesRegex(EmbeddedBrokerError, f"{self.data}: Read-only file system. Make"):
            self.start()
        subprocess.run(["mount", "-o", "remount,rw", self.data], check=True)
        self.assertEqual(self.start(), [b"second", b"message"])

    @skipUnless(os.geteuid() == 0, "only root may mount a small disk")
    def test_a_server_with_a_full_disk_says_so_when_it_is_pinged(self) -> None:
        """The watchdog asks so: such a server still counts its queues, and no worker can connect to it."""
        self.data.mkdir()
        mount_small_disk(self, self.data, "256k")
        broker = EmbeddedBroker(self.data, self.socket)
        broker.start()
        self.addCleanup(broker.stop)
        with redis.Redis.from_url(broker.url) as client:
            eventually(lambda: self.refuses(client), "the disk is full")
            with self.assertRaisesRegex(redis.ResponseError, "MISCONF"):
                client.ping()
            self.assertGreater(client.llen("queue"), 0)
            client.config_set("appendonly", "no")  # it stops as it started, without room for its log

    def refuses(self, client: redis.Redis) -> bool:
        try:
            client.lpush("queue", bytes(8192))
        except redis.ResponseError:
            return True
        return False
