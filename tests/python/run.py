"""Runs the tests of the Python package. Exit status 77 (skipped) where what they need is not installed."""

import importlib.util
import sys
from pathlib import Path

if __name__ == "__main__":
    for package in ("numpy", "pytest"):
        if importlib.util.find_spec(package) is None:
            print(f"the tests of the Python package cannot run here: there is no {package}")
            sys.exit(77)
    if importlib.util.find_spec("torch") is None:
        print("the tests of dsmoe.torch cannot run here: there is no torch (pip install torch, then run tests/python/run.py)")
    import dsmoe
    import pytest

    print(f"{dsmoe.__file__} with Python {sys.version.split()[0]}", flush=True)
    here = str(Path(__file__).parent)
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", here, *(sys.argv[1:] or [here])]))
