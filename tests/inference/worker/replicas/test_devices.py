import os
import re
from collections.abc import Sequence
from dataclasses import replace
from unittest import TestCase
from unittest.mock import patch
from uuid import uuid4

from inference.worker.replicas import devices, gpus
from inference.worker.replicas.devices import DeviceSelection, Plan
from inference.worker.replicas.gpus import Device, FoundGpus

GB = 10**9
TWO = FoundGpus(
    gpus=tuple(Device(name=f"cuda:{n}", visible=f"GPU-{n}", memory=80 * GB) for n in (4, 7)),
    why="for a test",
    is_listed=True,
)
NONE = FoundGpus(why="there is no nvidia-smi")


def choose(option: str, found: FoundGpus = TWO) -> DeviceSelection:
    with patch.object(gpus, "find_gpus", return_value=found):
        return devices.choose_devices(option)


def names(option: str, found: FoundGpus = TWO) -> list[str]:
    return [device.name for device in choose(option, found).devices]


def plan(
    choice: DeviceSelection, concurrency: int | None = None, sizes: Sequence[int | None] = (), most: int = 4
) -> Plan:
    return devices.make_plan(worker=uuid4(), choice=choice, concurrency=concurrency, sizes=sizes, most=most)


CPU = choose("cpu")


class ChoiceTests(TestCase):
    def test_auto_takes_every_gpu_and_else_the_cpu(self) -> None:
        self.assertEqual((names("auto"), names("auto", NONE)), (["cuda:4", "cuda:7"], ["cpu"]))
        self.assertEqual(names("auto", TWO), ["cuda:4", "cuda:7"])

    def test_numbers_count_what_may_be_used_and_names_are_those_of_the_host(self) -> None:
        self.assertEqual(names("cuda:1, cuda:0"), ["cuda:7", "cuda:4"])
        self.assertEqual(names("cpu"), ["cpu"])

    def test_what_is_chosen_and_why_is_in_the_log(self) -> None:
        with self.assertLogs(devices.logger, "INFO") as logs:
            choose("auto")
        self.assertIn("devices: cuda:4, cuda:7; for a test", logs.output[0])

    def test_what_was_found_is_shown_also_where_devices_were_named(self) -> None:
        self.assertEqual(choose("cuda:0").why, "it was asked for; for a test")
        with self.assertRaisesRegex(ValueError, "there is no cuda:2, 2 can be used here: for a test"):
            choose("cuda:2")

    def test_a_gpu_that_is_to_be_expected_and_cannot_be_used_is_said_loudly(self) -> None:
        broken = FoundGpus(why="nvidia-smi lists none", problem=True)
        with self.assertLogs(devices.logger, "ERROR") as logs:
            self.assertEqual(names("auto", broken), ["cpu"])
        self.assertIn("no GPU is used, though there should be one: nvidia-smi lists none", logs.output[0])
        with self.assertNoLogs(devices.logger, "ERROR"):
            choose("auto", NONE)
            choose("cpu", broken)

    def test_another_word_is_refused_with_what_would_be_right(self) -> None:
        for wrong in ("cpu,gpu", "cuda:0+cpu", "cuda:0+", ""):
            with self.subTest(wrong), self.assertRaisesRegex(ValueError, "not a device; use auto, cpu, or a list such"):
                choose(wrong)

    def test_a_number_that_is_not_there_is_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "there is no cuda:2, 2 can be used here"):
            choose("cuda:2")
        counted = FoundGpus(gpus=TWO.gpus, why="2 are counted at /dev/nvidia[0-9]*")
        self.assertEqual(names("cuda:1", counted), ["cuda:7"])
        for wrong, found in (("cuda:0", NONE), ("cuda:0+cuda:2", counted)):
            with self.assertRaisesRegex(ValueError, f"there is no {wrong[-6:]}, .*: {re.escape(found.why)}"):
                choose(wrong, found)
        with self.assertRaisesRegex(ValueError, "none can be used here: there is no nvidia-smi. If there is one"):
            choose("cuda:0", NONE)

    def test_a_variable_that_hides_every_gpu_hides_those_that_are_named(self) -> None:
        hidden = FoundGpus(why="CUDA_VISIBLE_DEVICES hides every GPU", is_listed=True)
        with self.assertRaisesRegex(ValueError, "no cuda:0, none can be used here: CUDA_VISIBLE_DEVICES hides"):
            choose("cuda:0", hidden)

    def test_a_set_is_one_device(self) -> None:
        (both,) = choose("cuda:0+cuda:1").devices
        self.assertEqual((both.name, both.visible, both.memory), ("cuda:4+cuda:7", "GPU-4,GPU-7", 160 * GB))
        with self.assertRaisesRegex(ValueError, "names a GPU twice"):
            choose("cuda:0+cuda:0")

    def test_a_slice_is_in_no_set(self) -> None:
        sliced = FoundGpus(gpus=(*TWO.gpus, Device(name="cuda:7/mig:0", visible="MIG-1")), why="", is_listed=True)
        self.assertEqual(names("cuda:2", sliced), ["cuda:7/mig:0"])
        with self.assertRaisesRegex(ValueError, "has a slice of a GPU"):
            choose("cuda:0+cuda:2", sliced)

    def test_a_name_fits_into_a_jobs_row(self) -> None:
        eight = FoundGpus(gpus=tuple(Device(name=f"cuda:{n}", visible=str(n)) for n in range(8)), why="")
        (name,) = names(whole := "+".join(f"cuda:{n}" for n in range(8)), eight)
        self.assertEqual((name, devices.truncate_device_name(name)), (whole, "cuda:0+cuda:1+cuda:…"))
        self.assertEqual(len(devices.truncate_device_name(name)), 20)


class PlanTests(TestCase):
    def test_there_is_one_replica_a_core_on_cpus(self) -> None:
        with patch.object(devices, "count_cores", return_value=4), patch.dict(os.environ, OMP_NUM_THREADS=""):
            self.assertEqual((plan(CPU).replicas, plan(CPU).threads), (4, 1))
            self.assertEqual((plan(CPU, 2).replicas, plan(CPU, 2).threads), (2, 2))

    def test_there_are_several_replicas_a_gpu_where_memory_and_cores_allow(self) -> None:
        for cores, sizes, most, replicas in (
            (16, [GB // 10], 4, 8),  # small models: four each
            (16, [12 * GB], 4, 6),  # half of 80 GB, for 13 each
            (16, [70 * GB], 4, 2),
            (16, [None], 4, 2),  # of unknown size
            (16, [GB // 10], 1, 2),
            (4, [GB // 10], 4, 4),
            (1, [GB // 10], 4, 2),
        ):
            with self.subTest(sizes=sizes, cores=cores), patch.object(devices, "count_cores", return_value=cores):
                self.assertEqual(plan(choose("auto"), sizes=sizes, most=most).replicas, replicas)

    def test_a_gpu_that_is_named_twice_has_no_more_replicas_than_one_named_once(self) -> None:
        for option, sizes, replicas in (
            ("cuda:0,cuda:0", [GB // 10], 4),
            ("cuda:0,cuda:0", [12 * GB], 2),  # three fit
            ("cuda:0+cuda:1,cuda:0", [GB // 10], 4),
            ("cuda:0,cuda:1", [GB // 10], 8),
        ):
            with self.subTest(option, sizes=sizes), patch.object(devices, "count_cores", return_value=16):
                self.assertEqual(plan(choose(option), sizes=sizes).replicas, replicas)

    def test_a_gpu_of_unknown_memory_has_one_replica(self) -> None:
        self.assertEqual(devices.count_replicas_that_fit(0, [GB]), 1)

    def test_a_replica_computes_with_no_more_threads_than_the_environment_allows(self) -> None:
        for allowed, threads in (("1", 1), ("3", 2), ("1,2", 1), ("0", 1), ("many", 2)):
            variables = patch.dict(os.environ, OMP_NUM_THREADS=allowed)
            with self.subTest(allowed), variables, patch.object(devices, "count_cores", return_value=4):
                self.assertEqual(plan(CPU, 2).threads, threads)

    def test_child_i_is_bound_to_device_i_mod_n(self) -> None:
        bound = plan(choose("auto"), 4)
        self.assertEqual([bound.get_device(i) for i in range(4)], ["cuda:4", "cuda:7", "cuda:4", "cuda:7"])
        self.assertEqual(
            (
                bound.most_replicas_per_device,
                plan(choose("auto"), 3).most_replicas_per_device,
                plan(choose("auto"), 2).most_replicas_per_device,
            ),
            (2, 2, 1),
        )

    def test_replicas_share_a_gpu_by_whatever_devices_they_have_it(self) -> None:
        for option, replicas, sharing in (
            ("cuda:0,cuda:0", 2, 2),
            ("cuda:0+cuda:1,cuda:0", 2, 2),
            ("cuda:0+cuda:1", 2, 2),
            ("cuda:0,cuda:1,cuda:1", 3, 2),
            ("cpu,cpu", 4, 4),
        ):
            with self.subTest(option):
                self.assertEqual(plan(choose(option), replicas).most_replicas_per_device, sharing)

    def test_those_on_gpus_work_ahead_unless_it_is_said_otherwise(self) -> None:
        for choice, ahead, works in (
            (choose("auto"), None, True), (choose("auto"), False, False), (CPU, None, False), (CPU, True, True),
        ):  # fmt: skip
            with self.subTest(choice, ahead=ahead):
                self.assertEqual(replace(plan(choice, 1), ahead=ahead).works_ahead(0), works)

    def test_a_child_sees_its_own_device_only(self) -> None:
        for choice, index, bound, visible in (
            (choose("auto"), 1, "cuda:0", "GPU-7"),
            (choose("cuda:0+cuda:1"), 1, "cuda:0", "GPU-4,GPU-7"),
            (CPU, 0, "cpu", ""),
        ):
            with self.subTest(choice), patch.dict(os.environ, CUDA_VISIBLE_DEVICES="4,7"):
                self.assertEqual(plan(choice, 2).bind_device(index), bound)
                self.assertEqual(os.environ["CUDA_VISIBLE_DEVICES"], visible)

    def test_a_child_counts_gpus_as_nvidia_smi_does_unless_the_operator_says_otherwise(self) -> None:
        for given, expected in (({}, "PCI_BUS_ID"), ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "FASTEST_FIRST")):
            with self.subTest(given), patch.dict(os.environ):
                os.environ.pop("CUDA_DEVICE_ORDER", None)
                os.environ.update(given)
                plan(choose("auto"), 2).bind_device(0)
                self.assertEqual(os.environ.get("CUDA_DEVICE_ORDER"), expected)

    def test_the_allocator_of_a_gpu_does_not_keep_holes_unless_the_operator_says_otherwise(self) -> None:
        for given, expected in (({}, "expandable_segments:True"), ({"PYTORCH_CUDA_ALLOC_CONF": "x"}, None)):
            with self.subTest(given), patch.dict(os.environ, given):
                os.environ.pop("PYTORCH_ALLOC_CONF", None)
                devices.set_up_libraries(1)
                self.assertEqual(os.environ.get("PYTORCH_ALLOC_CONF"), expected)

    def test_a_tokenizer_reads_in_several_threads_beside_a_gpu_with_cores_to_spare(self) -> None:
        for threads, is_cpu, given, expected in (
            (8, False, {}, ("true", "4")),
            (4, False, {}, ("false", "1")),
            (16, True, {}, ("false", "1")),
            (16, False, {"TOKENIZERS_PARALLELISM": "false"}, ("false", "4")),
        ):
            with self.subTest(threads=threads, is_cpu=is_cpu, given=given), patch.dict(os.environ):
                for name in ("TOKENIZERS_PARALLELISM", "RAYON_NUM_THREADS"):
                    os.environ.pop(name, None)
                os.environ.update(given)
                devices.set_up_libraries(threads, is_cpu=is_cpu)
                self.assertEqual((os.environ["TOKENIZERS_PARALLELISM"], os.environ["RAYON_NUM_THREADS"]), expected)

    def test_the_cpu_is_the_device_of_a_plan_that_names_none(self) -> None:
        with patch.dict(os.environ):
            self.assertEqual(Plan(worker=uuid4(), devices=("cpu",), replicas=1, threads=1).bind_device(0), "cpu")
        self.assertEqual(Device(name="cpu").visible, "")
