"""Builds the package as `pip install .` does (without CUDA), installs it into an empty folder and runs it from there. What the
release build has in ccache need not be compiled again. Exit status 77 (skipped) where what a build needs is not installed."""

import importlib.util
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*command: object, **more: object) -> str:
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, **more)  # type: ignore[call-overload]
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def main() -> None:
    for package in ("numpy", "pip", "scikit_build_core", "nanobind"):
        if importlib.util.find_spec(package) is None:
            print(f"the wheel cannot be built here: there is no {package}")
            sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        run(sys.executable, "-c", f"from scikit_build_core.build import build_sdist; build_sdist({folder!r})")
        names = {"/".join(n.split("/")[1:]) for n in tarfile.open(next(out.glob("*.tar.gz"))).getnames()}
        assert {"CMakeLists.txt", "python/CMakeLists.txt", "src/CMakeLists.txt", "include/dsmoe/moe.h", "LICENSE"} <= names
        options = ("--no-build-isolation", "--no-deps", "--no-index")
        run(sys.executable, "-m", "pip", "wheel", *options, "-w", out, ROOT, "-C", "cmake.define.DSMOE_CUDA=OFF")
        wheel = next(out.glob("*.whl"))
        names = set(zipfile.ZipFile(wheel).namelist())
        assert {"dsmoe/_core.pyi", "dsmoe/py.typed", "dsmoe/torch.py", "dsmoe/bin/dsmoe"} <= names, names
        run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", out / "site", wheel)
        here = dict(env={**os.environ, "PYTHONPATH": str(out / "site"), "PYTHONDONTWRITEBYTECODE": "1"})
        found = run(sys.executable, "-c", "import dsmoe; print(dsmoe.__file__, dsmoe.plan('tiny')['parameters'] > 0)", **here)
        assert found.strip() == f"{out / 'site' / 'dsmoe' / '__init__.py'} True", found
        assert "dsmoe" in run(sys.executable, "-m", "dsmoe", "--version", **here)
        print(f"{wheel.name}: {wheel.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
