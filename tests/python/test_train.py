"""Training: the program's bits, a call per step, and ends that lose nothing."""

import numpy as np
import pytest

import dsmoe

SMALL = dict(batch_size=2, seq_len=32, warmup_steps=1, eval_every=0, eval_sequences=2, threads=2)


def weights(folder):
    return b"".join(p.read_bytes() for p in sorted(folder.glob("*.safetensors")))


def test_trains_to_the_programs_bits(tmp_path, program):
    steps = []
    result = dsmoe.train(tmp_path / "a", steps=3, on_step=steps.append, **SMALL)
    flags = ["--steps", 3, "--batch-size", 2, "--seq-len", 32, "--warmup-steps", 1, "--eval-every", 0, "--eval-sequences", 2]
    program("train", "-o", tmp_path / "b", *flags)
    assert weights(tmp_path / "a") == weights(tmp_path / "b") != b""
    assert [s["step"] for s in steps] == [0, 1, 2] and result.steps == 3 and not result.stopped
    assert result.losses.tolist() == [s["loss"] for s in steps] and result.losses.dtype == np.float64
    assert steps[0]["grad_norm"] > 0 and steps[0]["evaluation"] is None
    assert result.evaluation["loss"] > 0
    loaded = dsmoe.Model(result.folder)
    assert loaded.logits([1, 2, 3]).tobytes() == result.model.logits([1, 2, 3]).tobytes()


def test_stops_and_resumes_to_the_bit(tmp_path):
    dsmoe.train(tmp_path / "whole", steps=4, **SMALL)
    part = dsmoe.train(tmp_path / "part", steps=4, on_step=lambda s: s["step"] < 1, **SMALL)
    assert part.stopped and part.steps == 2
    del part  # a run's folder is locked while anyone holds its model
    rest = dsmoe.train(tmp_path / "part", resume=True, threads=2)
    assert rest.steps == 4 and len(rest.losses) == 2
    assert weights(tmp_path / "whole") == weights(tmp_path / "part")


def test_a_callbacks_exception_ends_the_run_with_a_checkpoint(tmp_path):
    def on_step(step):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        dsmoe.train(tmp_path / "run", steps=4, on_step=on_step, **SMALL)
    assert dsmoe.Model(tmp_path / "run").logits([1]).shape[0] == 1


def test_fine_tunes_and_refuses(folder, tmp_path):
    data = tmp_path / "text.txt"
    data.write_text("one two three four five six seven\n" * 200)
    notes = []
    tuned = dsmoe.train(
        tmp_path / "tuned", model=folder, data=[data], steps=2, lora_rank=2, on_note=notes.append, **SMALL
    )
    assert tuned.steps == 2 and tuned.model.tokenizer is not None
    with pytest.raises(dsmoe.Error, match="batch-size"):
        dsmoe.train(tmp_path / "no", **{**SMALL, "batch_size": 0})
    with pytest.raises(TypeError, match="colour"):
        dsmoe.train(tmp_path / "no", colour=1)
    assert not (tmp_path / "no").exists()
