"""The examples of the documentation run: code blocks in order, as one program, and the files of examples/python."""

import importlib.util
import re
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT


def has(*packages):
    return all(importlib.util.find_spec(p) is not None for p in packages)


def blocks(path):
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(encoding="utf-8"), re.S)


@pytest.fixture
def place(tmp_path, folder):
    shutil.copytree(folder, tmp_path / "my-model", symlinks=False, ignore=shutil.ignore_patterns("checkpoint-*", "*.lock"))
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 400)
    return tmp_path


def run(place, *arguments):
    done = subprocess.run([sys.executable, *map(str, arguments)], cwd=place, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("document", ["docs/howto/python.md", "README.md"])
def test_code_blocks(place, document):
    found = blocks(document)
    assert found, "the document has no Python"
    if not has("torch"):
        found = [b for b in found if "torch" not in b]
    (place / "program.py").write_text("\n".join(found))
    run(place, "program.py")


def test_fine_tune(place):
    out = run(place, ROOT / "examples/python/fine_tune.py", "my-model", "text.txt", "tuned", 12)
    before, after = map(float, re.search(r"perplexity ([\d.]+) before, ([\d.]+) after 12", out).groups())
    assert after < before


@pytest.mark.skipif(not has("matplotlib"), reason="needs matplotlib")
def test_plot_loads(place):
    run(place, ROOT / "examples/python/plot_loads.py", "my-model", "loads.png")
    assert (place / "loads.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(not has("torch", "transformers"), reason="needs PyTorch and transformers")
def test_swap_layer(place):
    out = run(place, ROOT / "examples/python/swap_layer.py")
    assert "2 MoE blocks replaced, 0 kept" in out
    before, after = map(float, re.search(r"loss ([\d.]+) and ([\d.]+)", out).groups())
    assert abs(before - after) < 1e-3
