import os
from unittest import TestCase
from unittest.mock import patch
from uuid import uuid4

from inference.worker import devices


def plan(names: tuple[str, ...], concurrency: int | None = None) -> devices.Plan:
    return devices.make_plan(worker=uuid4(), devices=names, concurrency=concurrency, models=("a", "b"))


class DevicesTests(TestCase):
    def test_a_list_of_devices_is_read(self):
        self.assertEqual(devices.parse("cuda:0, cuda:1"), ("cuda:0", "cuda:1"))
        self.assertEqual(devices.parse("cpu"), ("cpu",))

    def test_another_word_is_refused_with_what_would_be_right(self):
        with self.assertRaisesRegex(ValueError, "'gpu' is not a device; use auto, cpu, or a list such as cuda:0"):
            devices.parse("cpu,gpu")

    def test_auto_takes_every_visible_gpu_and_else_the_cpu(self):
        with patch.dict(os.environ, CUDA_VISIBLE_DEVICES="3,5"):
            self.assertEqual(devices.parse("auto"), ("cuda:0", "cuda:1"))
        with patch.dict(os.environ, CUDA_VISIBLE_DEVICES=""):
            self.assertEqual(devices.parse("auto"), ("cpu",))

    def test_there_is_one_replica_a_gpu_and_one_a_core_on_cpus(self):
        self.assertEqual(plan(("cuda:0", "cuda:1")).replicas, 2)
        with patch.object(devices, "cores", return_value=4):
            self.assertEqual((plan(("cpu",)).replicas, plan(("cpu",)).threads), (4, 1))
            self.assertEqual((plan(("cpu",), 2).replicas, plan(("cpu",), 2).threads), (2, 2))

    def test_child_i_is_bound_to_device_i_mod_n(self):
        bound = plan(("cuda:0", "cuda:1"), 4)
        self.assertEqual([bound.device_of(i) for i in range(4)], ["cuda:0", "cuda:1", "cuda:0", "cuda:1"])

    def test_a_child_sees_its_own_device_only(self):
        with patch.dict(os.environ, CUDA_VISIBLE_DEVICES=""):
            self.assertEqual(plan(("cuda:0", "cuda:1")).bind(1), "cuda:0")
            self.assertEqual(os.environ["CUDA_VISIBLE_DEVICES"], "1")
        with patch.dict(os.environ, CUDA_VISIBLE_DEVICES="4,7"):
            self.assertEqual(plan(("cuda:0", "cuda:1")).bind(1), "cuda:0")
            self.assertEqual(os.environ["CUDA_VISIBLE_DEVICES"], "7")
        with patch.dict(os.environ, CUDA_VISIBLE_DEVICES="4,7"):
            self.assertEqual(plan(("cpu",)).bind(1), "cpu")
            self.assertEqual(os.environ["CUDA_VISIBLE_DEVICES"], "")
