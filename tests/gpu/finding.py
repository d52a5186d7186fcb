"""Cases 1 and 2: which GPUs are found."""

import os
from unittest.mock import patch

from inference.worker.replicas import devices, gpus
from tests.gpu.machine import Machine, expect


def environment(machine: Machine) -> str:
    with machine.host():
        choice = devices.choose_devices("auto")
    found = ", ".join(device.name for device in choice.devices)
    expect(choice.devices[0].name.startswith("cuda:0"), f"auto chose {found}: {choice.why}")
    return f"{machine.described()}; auto chose {found}, as {choice.why}"


def discovery(machine: Machine) -> str:
    with machine.host():
        listed = gpus.find_gpus()
    expect(bool(listed.gpus), f"nothing was found: {listed.why}")
    for tool in ("missing", "failing", "hanging"):
        with machine.host(tool), patch.object(gpus, "LISTING_S", 0.5):
            found = gpus.find_gpus()
        expect(len(found.gpus) == len(listed.gpus), f"{tool} nvidia-smi: {len(found.gpus)} found, {found.why}")
    first = listed.gpus[0]
    for visible, names in ((first.visible, [first.name]), ("0,-1", [first.name]), ("", [])):
        with machine.host(), patch.dict(os.environ, CUDA_VISIBLE_DEVICES=visible):
            seen = [gpu.name for gpu in gpus.find_gpus().gpus]
        expect(seen == names, f"CUDA_VISIBLE_DEVICES={visible!r} is {seen}, not {names}")
    return f"{len(listed.gpus)} with and without nvidia-smi, by number and by UUID"
