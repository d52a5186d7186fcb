"""Runs the scripts of tests/npm with the packages that are pinned there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import unittest
from pathlib import Path
from typing import Any

from tests.conditions import PATIENCE_S
from tests.once import made_once

FOLDER = Path(__file__).parent / "npm"

needed = unittest.skipUnless(shutil.which("npm") or os.environ.get("CI"), "npm is not installed")


def run(script: str, *arguments: str, data: Any = None) -> Any:
    """Return what the script prints, which is JSON; `data` is what it reads."""
    return ended(start(script, *arguments), data)


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        ["node", script, *arguments], cwd=made_once("npm", _install), text=True, stdin=pipe, stdout=pipe, stderr=pipe
    )


def ended(process: subprocess.Popen[str], data: Any = None) -> Any:
    """What it prints from now on."""
    return json.loads(read_output(process, data))


def read_output(process: subprocess.Popen[str], data: Any = None) -> str:
    """Return what a script prints until it ends. `data` is what it reads. Raises `AssertionError` if it fails."""
    with process:
        try:
            printed, errors = process.communicate(json.dumps(data), timeout=PATIENCE_S)
        finally:
            process.kill()
    if process.returncode:
        raise AssertionError(errors)
    return printed


def _install(folder: Path) -> None:
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("node_modules"))
    subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=folder, check=True, capture_output=True)
