"""The model on a GPU: the same as the program's own output there, bit for bit."""

import numpy as np
import pytest

import dsmoe
from dsmoe import _core

if (why := _core.why_no_cuda()) is not None:
    pytest.skip(f"dsmoe.Model on a GPU cannot run here: {why}", allow_module_level=True)

TEXT = "Once upon a time"


@pytest.fixture(scope="module", params=["f32", "bf16"])
def on_gpu(folder, request):
    return dsmoe.Model(folder, device="cuda", dtype=request.param)


def test_generates_what_the_program_generates(on_gpu, folder, program):
    assert on_gpu.device == "cuda"
    for options, flags in (
        ({"temperature": 0}, ("--temp", 0)),
        ({"temperature": 0.9, "seed": 7, "top_k": 20}, ("--temp", 0.9, "--seed", 7, "--top-k", 20)),
    ):
        on = ("--device", "cuda", "--dtype", on_gpu.dtype)
        expected = program("generate", "-m", folder, "-p", TEXT, "-n", 24, *on, *flags)
        got = on_gpu.generate(TEXT, max_tokens=24, **options)
        assert (got.ids.tolist(), got.text, got.finish) == (expected["ids"], expected["text"], expected["finish"])


def test_streams_and_batches_are_the_same_text(on_gpu):
    options = dict(max_tokens=16, temperature=0)
    alone = [on_gpu.generate(t, **options) for t in (TEXT, "The", "A b c")]
    together = on_gpu.generate([TEXT, "The", "A b c"], **options)
    assert [g.ids.tolist() for g in together] == [g.ids.tolist() for g in alone]
    stream = on_gpu.generate(TEXT, stream=True, **options)
    assert "".join(p.text for p in stream) == alone[0].text
    with on_gpu.generate(TEXT, stream=True, max_tokens=100) as left:
        next(left)


def test_logits_loss_and_routing(on_gpu, model):
    logits, expected = on_gpu.logits(TEXT), model.logits(TEXT)
    limit = 1e-4 if on_gpu.dtype == "f32" else 3e-2
    assert logits.dtype == np.float32
    assert np.linalg.norm(logits - expected) < limit * np.linalg.norm(expected)
    assert abs(on_gpu.loss(TEXT) - model.loss(TEXT)) < limit
    assert on_gpu.loss([TEXT, "The"]) == on_gpu.loss([TEXT, "The"])
    found, on_cpu = on_gpu.routing(TEXT), model.routing(TEXT)
    assert found.experts.shape == on_cpu.experts.shape and found.load().sum() == on_cpu.load().sum()
    if on_gpu.dtype == "f32":
        assert np.array_equal(found.experts, on_cpu.experts)
        assert np.abs(found.weights - on_cpu.weights).max() < 1e-4


def test_a_session_goes_on(on_gpu):
    session = on_gpu.session(context=128)
    a = session.generate(TEXT, max_tokens=8, temperature=0)
    b = session.generate(" there", max_tokens=8, temperature=0)
    assert len(session.history) >= len(a.ids) + len(b.ids)
    assert on_gpu.generate(TEXT, max_tokens=8, temperature=0).ids.tolist() == a.ids.tolist()


def test_overrides_inspection_and_training(on_gpu, folder, tmp_path):
    plain, changed = on_gpu.loss(TEXT), on_gpu.loss(TEXT, overrides=dsmoe.Overrides(skip_best=1))
    assert plain != changed
    report = dsmoe.inspect(on_gpu, "builtin", limit=4)
    assert report.load.sum() > 0
    if on_gpu.dtype == "f32":
        losses = []
        options = dict(steps=3, batch_size=2, seq_len=32, device="cuda", on_step=lambda s: losses.append(s["loss"]))
        result = dsmoe.train(tmp_path / "tuned", model=folder, **options)
        assert len(losses) == 3 and np.all(np.isfinite(result.losses))
