"""The layer on arrays of others, without PyTorch: forward and backward against NumPy."""

import ctypes
import gc

import numpy as np
import pytest

import dsmoe
from dsmoe import _core

D, F, E, S, K, T = 16, 8, 6, 2, 3, 20


class Capsule:
    """What np.from_dlpack() asks for, around the capsule that the extension gives."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return (1, 0)


def taken(capsule):
    return np.from_dlpack(Capsule(capsule))


def made(seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)
    return draw(T, D), draw(E, D), draw(S + E, 2, F, D) * 0.3, draw(S + E, D, F) * 0.3


def reference(x, gate, gate_up, down):
    """In double, token by token."""
    x, gate, gate_up, down = (a.astype(np.float64) for a in (x, gate, gate_up, down))

    def ffn(e, u):
        g = gate_up[e, 0] @ u
        return down[e] @ (g / (1 + np.exp(-g)) * (gate_up[e, 1] @ u))

    out, chosen = np.zeros_like(x), []
    for t, u in enumerate(x):
        scores = np.exp(gate @ u - (gate @ u).max())
        scores /= scores.sum()
        best = np.argsort(-scores, kind="stable")[:K]
        chosen.append(best)
        out[t] = sum(ffn(s, u) for s in range(S)) + sum(scores[e] * ffn(S + e, u) for e in best)
    return out, np.array(chosen)


def config(**more):
    return _core.MoeConfig(hidden_size=D, expert_size=F, routed_experts=E, shared_experts=S, experts_per_token=K, **more)


def test_forward_against_numpy():
    x, gate, gate_up, down = made()
    y, losses, experts, weights, kept = _core.layer_forward(config(), x, gate, None, gate_up, down, False, True)
    expected, chosen = reference(x, gate, gate_up, down)
    assert losses is None and kept is None
    assert np.array_equal(taken(experts), chosen)
    assert np.linalg.norm(taken(y) - expected) < 1e-5 * np.linalg.norm(expected)
    assert taken(weights).shape == (T, K)


def test_backward_against_differences():
    x, gate, gate_up, down = made()
    dy = made(1)[0]
    grads = [np.full_like(w, np.nan) for w in (gate, gate_up, down)]
    *_, kept = _core.layer_forward(config(), x, gate, None, gate_up, down, True)
    kept = taken(kept)  # what holds the pass
    dx = taken(_core.layer_backward(config(), kept, dy, gate, None, gate_up, down, *grads))
    arrays = [x, gate, gate_up, down]
    rng = np.random.default_rng(2)
    for i, gradient in enumerate([dx, *grads]):
        direction = rng.standard_normal(gradient.shape)
        ends = []
        for sign in (1, -1):
            moved = [a.astype(np.float64) for a in arrays]
            moved[i] = moved[i] + sign * 1e-5 * direction
            ends.append(float((reference(*moved)[0] * dy).sum()))
        slope = (ends[0] - ends[1]) / 2e-5
        assert abs(slope - float((gradient * direction).sum())) < 1e-3 * max(1, abs(slope)), i


def test_a_pass_has_one_backward_and_goes_with_its_array():
    x, gate, gate_up, down = made()
    grads = [np.empty_like(w) for w in (gate, gate_up, down)]
    before = _core.waiting_passes()
    kept = taken(_core.layer_forward(config(), x, gate, None, gate_up, down, True)[-1])
    call = lambda n: _core.layer_backward(config(), n, x, gate, None, gate_up, down, *grads)
    assert call(kept) is not None
    assert call(kept) is None
    assert call(np.array([10**9])) is None
    with pytest.raises(TypeError):
        call(np.array([1, 2]))
    del kept
    gc.collect()
    assert _core.waiting_passes() == before


def test_what_does_not_fit_is_refused_by_name():
    x, gate, gate_up, down = made()
    for arguments, words in (
        ((x[:, :8], gate, None, gate_up, down), "x"),
        ((x, gate.astype(np.float64), None, gate_up, down), "gate has a dtype"),
        ((x, gate, None, gate_up[:, :, :, ::2], down), "gate_up is not contiguous"),
        ((x, gate[:-1], None, gate_up, down), "gate"),
    ):
        with pytest.raises(dsmoe.Error, match=words):
            _core.layer_forward(config(), *arguments, False)
    with pytest.raises(dsmoe.Error, match="experts_per_token"):
        _core.MoeConfig(hidden_size=8, expert_size=8, routed_experts=2, experts_per_token=3)
    with pytest.raises(dsmoe.Error, match="choose softmax or sigmoid"):
        config(score="loud")
    bad = x.copy()
    bad[3, 0] = np.nan
    with pytest.raises(dsmoe.Error, match="token 3"):
        _core.layer_forward(config(), bad, gate, None, gate_up, down, False)


def on_gpu(array, number):
    """A capsule that says its memory is that of a GPU; there need not be one, as long as nobody reads it."""
    capsule = array.__dlpack__()
    find = ctypes.pythonapi.PyCapsule_GetPointer
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    device = (ctypes.c_int32 * 2).from_address(find(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p))
    assert tuple(device) == (1, 0)  # the CPU, in DLPack's words; 2 is CUDA
    device[:] = (2, number)
    return capsule


def test_arrays_on_different_devices_are_refused():
    arrays = dict(zip(("x", "gate", "gate_up", "down"), made()), gate_bias=np.zeros(E, np.float32))

    def call(**where):
        got = {name: on_gpu(a, where[name]) if where[name] is not None else a for name, a in arrays.items()}
        _core.layer_forward(config(selection_bias=True), training=False, **got)

    for name in ("gate", "gate_bias", "gate_up", "down"):
        with pytest.raises(dsmoe.Error, match=f"^{name} is on cuda:1 and x on cuda:0; move"):
            call(**{**dict.fromkeys(arrays, 0), name: 1})
        with pytest.raises(dsmoe.Error, match=f"^{name} is on the CPU and x on cuda:3; move"):
            call(**{**dict.fromkeys(arrays, 3), name: None})
    call(**dict.fromkeys(arrays))
    grads = dict(zip(("d_gate", "d_gate_up", "d_down"), (np.empty_like(a) for a in made()[1:])))
    dy, *weights = (on_gpu(arrays[n], 1) for n in ("x", "gate", "gate_up", "down"))
    with pytest.raises(dsmoe.Error, match="^the gradient of gate is on the CPU and dy on cuda:1; move"):
        _core.layer_backward(config(), np.array([0]), dy, weights[0], None, weights[1], weights[2], **grads)
