"""plan, convert, quantize and inspect: what the commands of these names print and write."""

import json

import numpy as np
import pytest

import dsmoe


def test_plan_is_the_programs(program, folder):
    assert dict(dsmoe.plan("deepseek-moe-16b", context=2048)) == program(
        "plan", "--preset", "deepseek-moe-16b", "--context", 2048
    )
    assert dict(dsmoe.plan(experts=16, active=2, split=4, shared=1)) == program(
        "plan", "-N", 16, "-K", 2, "-m", 4, "-s", 1
    )
    config = json.loads((folder / "config.json").read_text())
    assert dsmoe.plan(config=config)["parameters"] == dsmoe.plan(config=folder)["parameters"]
    assert "<table>" in dsmoe.plan("tiny")._repr_html_()
    with pytest.raises(dsmoe.Error, match="one of preset"):
        dsmoe.plan()


def test_quantize_writes_the_programs_bytes(folder, tmp_path, program):
    seen = []
    done = dsmoe.quantize(folder, tmp_path / "a.gguf", "q8_0", progress=lambda now, total: seen.append((now, total)))
    expected = program("quantize", folder, "-o", tmp_path / "b.gguf", "--type", "q8_0")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    for key in ("parameters", "bytes", "type", "bytes_by_dtype"):
        assert done[key] == expected[key]
    assert seen and seen[-1][0] == seen[-1][1]
    assert dsmoe.Model(tmp_path / "a.gguf").generate([1, 2], max_tokens=2).ids.size == 2
    with pytest.raises(dsmoe.Error, match="already there"):
        dsmoe.quantize(folder, tmp_path / "a.gguf", "q8_0")
    with pytest.raises(ValueError, match=".gguf"):
        dsmoe.quantize(folder, tmp_path / "c", "q8_0")


def test_convert_there_and_back(folder, tmp_path, model):
    dsmoe.convert(folder, tmp_path / "m.gguf")
    dsmoe.convert(tmp_path / "m.gguf", tmp_path / "m")
    assert dsmoe.Model(tmp_path / "m").logits([1, 2, 3]).tobytes() == model.logits([1, 2, 3]).tobytes()

    def enough(done, total):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        dsmoe.convert(folder, tmp_path / "n.gguf", progress=enough)
    assert not (tmp_path / "n.gguf").exists()


def test_inspect_is_the_programs(model, folder, program, tmp_path):
    found = dsmoe.inspect(model, "builtin", limit=200)
    expected = program("inspect", "-m", folder, "--data", "builtin", "--limit", 200)
    assert found.data["layers"] == expected["layers"]
    experts = model.config["n_routed_experts"]
    assert found.load.shape == (len(found.layers), experts) and found.load.sum() > 0
    assert found.mean_weight.shape == found.load.shape
    assert np.array_equal(np.diag(found.coactivation(0)), found.load[0])
    shown = found._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and "<script" not in shown.split(">", 1)[0]
    found.save(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == found.html
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(dsmoe.Error, match="report.html already exists.*overwrite") as refused:
        found.save(tmp_path / "report.html")
    assert refused.value.code == "invalid argument"
    assert (tmp_path / "report.html").read_text() == "mine"
    found.save(tmp_path / "report.html", overwrite=True)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == found.html
    assert dsmoe.inspect(model, ["builtin"], limit=100, against=model).data["layers"]


def test_python_m_dsmoe_is_the_program(program):
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-m", "dsmoe", "plan", "--preset", "tiny", "--json"], capture_output=True)
    assert done.returncode == 0 and json.loads(done.stdout) == program("plan", "--preset", "tiny")
    assert subprocess.run([sys.executable, "-m", "dsmoe", "--nothing"], capture_output=True).returncode == 2
