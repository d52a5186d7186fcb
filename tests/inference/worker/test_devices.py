import os
import tempfile
from pathlib import Path
from unittest import TestCase
from unittest.mock import patch
from uuid import uuid4

from inference.worker import devices


def plan(names: tuple[str, ...], concurrency: int | None = None) -> devices.Plan:
    return devices.make_plan(worker=uuid4(), devices=names, concurrency=concurrency)


class DevicesTests(TestCase):
    def test_a_list_of_devices_is_read(self) -> None:
        self.assertEqual(devices.parse("cuda:0, cuda:1"), ("cuda:0", "cuda:1"))
        self.assertEqual(devices.parse("cpu"), ("cpu",))

    def test_another_word_is_refused_with_what_would_be_right(self) -> None:
        with self.assertRaisesRegex(ValueError, "'gpu' is not a device; use auto, cpu, or a list such as cuda:0"):
            devices.parse("cpu,gpu")

    def test_auto_takes_every_visible_gpu_and_else_the_cpu(self) -> None:
        with patch.dict(os.environ, CUDA_VISIBLE_DEVICES="3,5"):
            self.assertEqual(devices.parse("auto"), ("cuda:0", "cuda:1"))
        with patch.dict(os.environ, CUDA_VISIBLE_DEVICES=""):
            self.assertEqual(devices.parse("auto"), ("cpu",))

    def test_cuda_stops_at_the_first_entry_that_is_no_device(self) -> None:
        with patch.dict(os.environ, CUDA_VISIBLE_DEVICES="0,-1,1"):
            self.assertEqual(devices.parse("auto"), ("cuda:0",))

    def test_without_nvidia_smi_or_with_one_that_fails_or_hangs_the_device_files_are_counted(self) -> None:
        for name, script in (("missing", ""), ("failing", "exit 9"), ("hanging", "exec sleep 60")):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, PATH=folder):
                os.environ.pop("CUDA_VISIBLE_DEVICES", None)
                for file in ("nvidia0", "nvidia1", "nvidiactl"):
                    Path(folder, file).touch()
                if script:
                    Path(folder, "nvidia-smi").write_text(f"#!/bin/sh\nPATH=/bin:/usr/bin\n{script}\n")
                    Path(folder, "nvidia-smi").chmod(0o755)
                files = patch.object(devices, "DEVICE_FILES", f"{folder}/nvidia[0-9]*")
                with files, patch.object(devices, "LISTING_S", 0.5), self.assertLogs(devices.logger) as logs:
                    self.assertEqual(devices.parse("auto"), ("cuda:0", "cuda:1"))
                self.assertIn("2 are counted", logs.output[0])

    def test_there_is_one_replica_a_gpu_and_one_a_core_on_cpus(self) -> None:
        self.assertEqual(plan(("cuda:0", "cuda:1")).replicas, 2)
        with patch.object(devices, "cores", return_value=4), patch.dict(os.environ, OMP_NUM_THREADS=""):
            self.assertEqual((plan(("cpu",)).replicas, plan(("cpu",)).threads), (4, 1))
            self.assertEqual((plan(("cpu",), 2).replicas, plan(("cpu",), 2).threads), (2, 2))

    def test_a_replica_computes_with_no_more_threads_than_the_environment_allows(self) -> None:
        for allowed, threads in (("1", 1), ("3", 2), ("1,2", 1), ("0", 1), ("many", 2)):
            variables = patch.dict(os.environ, OMP_NUM_THREADS=allowed)
            with self.subTest(allowed), variables, patch.object(devices, "cores", return_value=4):
                self.assertEqual(plan(("cpu",), 2).threads, threads)

    def test_child_i_is_bound_to_device_i_mod_n(self) -> None:
        bound = plan(("cuda:0", "cuda:1"), 4)
        self.assertEqual([bound.device_of(i) for i in range(4)], ["cuda:0", "cuda:1", "cuda:0", "cuda:1"])

    def test_a_child_sees_its_own_device_only(self) -> None:
        with patch.dict(os.environ, CUDA_VISIBLE_DEVICES=""):
            self.assertEqual(plan(("cuda:0", "cuda:1")).bind(1), "cuda:0")
            self.assertEqual(os.environ["CUDA_VISIBLE_DEVICES"], "1")
        with patch.dict(os.environ, CUDA_VISIBLE_DEVICES="4,7"):
            self.assertEqual(plan(("cuda:0", "cuda:1")).bind(1), "cuda:0")
            self.assertEqual(os.environ["CUDA_VISIBLE_DEVICES"], "7")
        with patch.dict(os.environ, CUDA_VISIBLE_DEVICES="4,7"):
            self.assertEqual(plan(("cpu",)).bind(1), "cpu")
            self.assertEqual(os.environ["CUDA_VISIBLE_DEVICES"], "")
