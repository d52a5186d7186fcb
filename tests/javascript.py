"""Runs the scripts of tests/npm with the packages that are pinned there."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

from tests.conditions import PATIENCE_S

FOLDER = Path(__file__).parent / "npm"

needed = unittest.skipUnless(shutil.which("npm") or os.environ.get("CI"), "npm is not installed")


def run(script: str, *arguments: str, told: Any = None) -> Any:
    """What the script prints, which is JSON; `told` is what it reads."""
    return ended(start(script, *arguments), told)


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        ["node", script, *arguments], cwd=_installed().name, text=True, stdin=pipe, stdout=pipe, stderr=pipe
    )


def ended(process: subprocess.Popen[str], told: Any = None) -> Any:
    """What it prints from now on."""
    with process:
        try:
            printed, errors = process.communicate(json.dumps(told), timeout=PATIENCE_S)
        finally:
            process.kill()
    if process.returncode:
        raise AssertionError(errors)
    return json.loads(printed)


@functools.lru_cache(maxsize=1)
def _installed() -> tempfile.TemporaryDirectory[str]:
    """A copy of this process's own: installing anew takes the packages away from a script that runs beside it."""
    folder = tempfile.TemporaryDirectory(prefix="npm-")
    shutil.copytree(FOLDER, folder.name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("node_modules"))
    subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=folder.name, check=True, capture_output=True)
    return folder
