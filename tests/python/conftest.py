"""What the tests of the Python package share. tests/python/run.py runs them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import dsmoe

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def program():
    """Runs the program that the package brings along; with json=True, what it prints is read."""
    from dsmoe.__main__ import program as path

    def run(*arguments, json_output=True):
        command = [str(path()), *map(str, arguments), *(["--json"] if json_output else [])]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return json.loads(done.stdout) if json_output else done.stdout

    return run


@pytest.fixture(scope="session")
def folder(tmp_path_factory, program):
    """A small model with a tokenizer."""
    out = tmp_path_factory.mktemp("model") / "small"
    program("train", "-o", out, "--steps", 2, "--batch-size", 2, "--seq-len", 32, "--eval-every", 0, json_output=True)
    return out


@pytest.fixture(scope="session")
def model(folder):
    return dsmoe.Model(folder, threads=2)
