"""Finding GPUs with a stand-in for nvidia-smi, as each kind of host has it."""

import os
import subprocess
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from unittest import TestCase
from unittest.mock import patch

from inference.worker.replicas import gpus
from inference.worker.replicas.gpus import FoundGpus
from tests.conditions import PATIENCE_S

TWO = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa-1)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb-2)
"""
SLICED = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-aaaa-1)
  MIG 3g.40gb     Device  0: (UUID: MIG-cccc-3)
  MIG 1g.10gb+me  Device  1: (UUID: MIG-dddd-4)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-bbbb-2)
"""
TWELVE = "".join(f"GPU {n}: NVIDIA H200 (UUID: GPU-{n:04}-1)\n" for n in range(12))
QUERY_ROWS = "GPU-aaaa-1, 81559, [N/A]\nGPU-bbbb-2, [N/A], Disabled\n"


class GpusTests(TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(patch.dict(os.environ, PATH=str(self.folder)))
        self.enterContext(patch.object(gpus, "DEVICE_FILES", f"{self.folder}/nvidia[0-9]*"))
        self.enterContext(patch.object(gpus, "LISTING_S", PATIENCE_S))
        self.enterContext(patch.object(gpus, "_read_torch_version", return_value="2.13.0"))
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
            os.environ.pop(name, None)

    def tool(self, listing: str = "", script: str = "", rows: str = QUERY_ROWS) -> None:
        """A stand-in for nvidia-smi that lists these, or does as `script` says."""
        (self.folder / "listing").write_text(listing)
        (self.folder / "rows").write_text(rows)
        script = script or f"case $1 in -L) cat {self.folder}/listing;; *) cat {self.folder}/rows;; esac"
        (self.folder / "nvidia-smi").write_text(f"#!/bin/sh\nPATH=/bin:/usr/bin\n{script}\n")
        (self.folder / "nvidia-smi").chmod(0o755)

    def hurried(self, hurries: bool = True) -> AbstractContextManager[object]:
        """Give a tool that does not answer little time."""
        return patch.object(gpus, "LISTING_S", 0.1) if hurries else nullcontext()

    def files(self, *names: str) -> None:
        for name in names:
            (self.folder / name).touch()

    def find(self, visible: str | None = None) -> FoundGpus:
        if visible is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible
        return gpus.find_gpus()

    def names(self, visible: str | None = None) -> list[str]:
        return [gpu.name for gpu in self.find(visible).gpus]

    def visible(self, visible: str | None = None) -> list[str]:
        return [gpu.visible for gpu in self.find(visible).gpus]

    def test_those_that_nvidia_smi_lists_are_bound_by_their_uuid(self) -> None:
        self.tool(TWO)
        found = self.find()
        self.assertEqual(
            [(gpu.name, gpu.visible) for gpu in found.gpus], [("cuda:0", "GPU-aaaa-1"), ("cuda:1", "GPU-bbbb-2")]
        )
        self.assertEqual([gpu.memory for gpu in found.gpus], [81559 * 2**20, 0])

    def test_a_gpu_in_slices_is_its_slices(self) -> None:
        self.tool(SLICED)
        self.assertEqual(self.names(), ["cuda:0/mig:0", "cuda:0/mig:1", "cuda:1"])
        self.assertEqual(self.visible(), ["MIG-cccc-3", "MIG-dddd-4", "GPU-bbbb-2"])
        self.assertEqual([gpu.memory for gpu in self.find().gpus][:2], [40 * 10**9, 10 * 10**9])
        self.assertEqual(self.names("MIG-dddd-4"), ["cuda:0/mig:1"])

    def test_a_gpu_in_mig_mode_without_a_slice_is_left_out_and_keeps_its_number(self) -> None:
        self.tool(TWO, rows="GPU-aaaa-1, 81559, Enabled\nGPU-bbbb-2, 81559, Disabled\n")
        found = self.find()
        self.assertEqual([(gpu.name, gpu.visible) for gpu in found.gpus], [("cuda:1", "GPU-bbbb-2")])
        self.assertIn("but for cuda:0: in MIG mode without a slice", found.why)
        self.assertEqual(self.visible("1"), ["GPU-bbbb-2"])
        self.assertIn("but for cuda:0: in MIG mode", self.find("1,0").why)
        with self.assertRaisesRegex(ValueError, "names no GPU of this host .*cuda:0: in MIG mode without a slice"):
            self.find("0")

    def test_gpus_that_are_all_in_mig_mode_without_a_slice_are_a_problem_and_not_counted(self) -> None:
        self.files("nvidia0", "nvidia1")
        self.tool(TWO, rows="GPU-aaaa-1, 81559, Enabled\nGPU-bbbb-2, 81559, Enabled\n")
        found = self.find()
        self.assertEqual((found.gpus, found.problem), ((), True))
        self.assertIn("but for cuda:0, cuda:1: in MIG mode without a slice", found.why)

    def test_a_gpu_in_slices_is_in_mig_mode(self) -> None:
        self.tool(SLICED, rows="GPU-aaaa-1, 81559, Enabled\nGPU-bbbb-2, 81559, Disabled\n")
        self.assertEqual(self.names(), ["cuda:0/mig:0", "cuda:0/mig:1", "cuda:1"])

    def test_where_there_is_no_tool_and_no_device_there_is_nothing_to_complain_of(self) -> None:
        found = self.find()
        self.assertEqual((found.gpus, found.problem), ((), False))
        self.assertIn("there is no nvidia-smi", found.why)

    def test_where_the_tool_is_missing_fails_hangs_or_lists_none_the_device_files_are_counted(self) -> None:
        for name, script in (
            ("missing", ""),
            ("failing", "exit 9"),
            ("hanging", "exec sleep 3600"),
            ("empty", ":"),
            ("garbage", r"printf '\377\376GPU\n'"),
        ):
            with self.subTest(name):
                self.files("nvidia0", "nvidia1", "nvidiactl")
                if script:
                    self.tool(script=script)
                with self.hurried(name == "hanging"):
                    found = self.find()
                self.assertEqual([gpu.visible for gpu in found.gpus], ["0", "1"])
                self.assertIn("2 are counted", found.why)

    def test_a_tool_that_is_stuck_in_the_driver_is_not_waited_for(self) -> None:
        """It does not end when it is killed."""
        self.files("nvidia0")
        self.tool(script=f"exec sleep {PATIENCE_S:g}")
        survived = patch.object(subprocess.Popen, "kill", autospec=True)
        with self.hurried(), survived as kill, patch.object(gpus, "ENDED_S", 0.1):
            found = self.find()
        (process,) = kill.call_args.args
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertEqual(len(found.gpus), 1)
        self.assertIsNone(process.poll())

    def test_sizes_that_cannot_be_read_are_not_known(self) -> None:
        self.tool(
            script=r"case $1 in -L) cat listing;; *) printf 'GPU-aaaa-1, \377\n';; esac".replace(
                "listing", f"{self.folder}/listing"
            ),
            listing=TWO,
        )
        self.assertEqual(
            [(gpu.visible, gpu.memory) for gpu in self.find().gpus], [("GPU-aaaa-1", 0), ("GPU-bbbb-2", 0)]
        )

    def test_a_tool_that_does_not_know_the_query_lists_them_all_the_same(self) -> None:
        self.tool(TWO, script=f"case $1 in -L) cat {self.folder}/listing;; *) exit 2;; esac")
        self.assertEqual([(gpu.name, gpu.memory) for gpu in self.find().gpus], [("cuda:0", 0), ("cuda:1", 0)])

    def test_a_tool_that_fails_or_hangs_where_no_device_is_seen_is_a_problem(self) -> None:
        for script in ("exit 9", "exec sleep 3600", "echo No devices found."):
            with self.subTest(script), self.hurried("sleep" in script):
                self.tool(script=script)
                self.assertEqual((self.find().gpus, self.find().problem), ((), True))

    def test_no_gpu_is_used_by_a_torch_that_is_built_for_cpus(self) -> None:
        self.tool(TWO)
        with patch.object(gpus, "_read_torch_version", return_value="2.13.0+cpu"):
            self.assertEqual((self.find().gpus, self.find().problem), ((), False))
            self.files("nvidia0")
            self.assertEqual((self.find().gpus, self.find().problem), ((), True))
            self.assertIn("install one for CUDA", self.find().why)

    def test_the_variable_is_read_as_cuda_reads_it(self) -> None:
        self.tool(TWO)
        for value, names in (
            ("1", ["cuda:1"]),
            ("1,0", ["cuda:1", "cuda:0"]),
            (" 0 , 1 ", ["cuda:0", "cuda:1"]),
            ("0,-1,1", ["cuda:0"]),
            ("0,7,1", ["cuda:0"]),
            ("0,GPU-bbbb-2", ["cuda:0"]),
            ("1,x", ["cuda:1"]),
            ("GPU-bbbb-2,GPU-aaaa-1", ["cuda:1", "cuda:0"]),
            ("GPU-b", ["cuda:1"]),
            ("GPU-a,GPU-zz,GPU-b", ["cuda:0"]),
            ("", []),
            ("-1", []),
            ("0,0", []),
            ("0,00", []),
            ("01", ["cuda:1"]),
            ("cuda:0", []),
            ("GPU-a,GPU-aaaa", []),
            ("GPU-bbbb-2,GPU-a,GPU-bbbb", []),
        ):
            with self.subTest(value):
                self.assertEqual(self.names(value), names)

    def test_numbers_are_those_of_nvidia_smi(self) -> None:
        """CUDA's own begin with the fastest GPU, where the environment does not say otherwise."""
        self.tool(TWELVE)
        self.assertEqual(self.visible("10,2"), ["GPU-0010-1", "GPU-0002-1"])
        self.assertIn("by nvidia-smi's numbers", self.find().why)
        self.tool(SLICED)
        self.assertEqual(self.visible("1,0"), ["GPU-bbbb-2", "MIG-cccc-3"])

    def test_numbers_are_cudas_own_where_the_environment_says_so(self) -> None:
        """Which GPU that is nobody tells: its memory is that of the smallest."""
        self.tool(TWO, rows="GPU-aaaa-1, 81559, Disabled\nGPU-bbbb-2, 24564, Disabled\n")
        os.environ["CUDA_DEVICE_ORDER"] = "FASTEST_FIRST"
        (gpu,) = self.find("0").gpus
        self.assertEqual((gpu.name, gpu.visible, gpu.memory), ("cuda:0", "0", 24564 * 2**20))
        self.assertIn("by CUDA's own numbers: CUDA_DEVICE_ORDER=FASTEST_FIRST", self.find().why)
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        self.assertEqual(self.visible("0"), ["GPU-aaaa-1"])

    def test_what_was_left_out_is_said(self) -> None:
        self.tool(TWO)
        self.assertIn("but for its last 2: CUDA stops at one that is none", self.find("0,7,1").why)

    def test_the_variable_hides_every_gpu(self) -> None:
        self.tool(TWO)
        self.assertEqual((self.find("").problem, self.find("").why), (False, "CUDA_VISIBLE_DEVICES hides every GPU"))

    def test_a_value_that_hides_every_gpu_differs_from_one_that_names_none(self) -> None:
        self.tool(TWO)
        for value, is_meant in (
            ("", True), (" ", True), ("-1", True), ("-1,0", True), ("NoDevFiles", True), ("none", True),
            ("cuda:0", False), ("all", False), ("0;1", False), ("0,0", False), ("\u0663", False),
            ("GPU-a,GPU-aa", False),
        ):  # fmt: skip
            with self.subTest(value):
                found = self.find(value)
                self.assertEqual((found.gpus, found.problem), ((), not is_meant))
                self.assertIn("hides every GPU" if is_meant else f"={value} names none", found.why)

    def test_a_variable_that_names_none_of_them_is_refused(self) -> None:
        self.tool(TWO)
        for value in ("7", "GPU-zz"):
            with self.subTest(value), self.assertRaisesRegex(ValueError, f"={value} names no GPU of this host"):
                self.find(value)

    def test_the_variable_is_believed_where_nothing_lists_them(self) -> None:
        self.assertEqual(self.names("4,7"), ["cuda:4", "cuda:7"])
        self.assertEqual(self.visible("GPU-aaaa-1"), ["GPU-aaaa-1"])
