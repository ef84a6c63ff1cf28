#!/usr/bin/env python3
"""Makes the golden files of the DeepSeekMoE layer beside this script; --check compares instead.

Needs numpy and PyTorch (Debian: python3-numpy, python3-torch). README.md says what the files hold.
"""
import dataclasses
import pathlib
import sys

import numpy as np
import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
import golden_support as support
import reference_layer as ref
from reference_layer import LayerConfig

# Well above what f32 arithmetic can move a score, so that every right f32 gate chooses the same experts.
MIN_GAP = 1e-4
MIN_GAP_BF16 = 0.03  # the same for scores that were rounded to bf16 (2**-9 of a logit of a few)
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")

# name: (config, batch, seq_len)
CASES = {
    "base": (LayerConfig(), 2, 9),
    "batch_aux": (LayerConfig(seq_aux=False), 2, 9),
    "no_shared": (LayerConfig(shared_experts=0), 2, 9),
    "norm_topk": (LayerConfig(norm_topk_prob=True), 2, 9),
    "norm_topk_k1": (LayerConfig(norm_topk_prob=True, experts_per_token=1), 2, 9),
    "all_experts": (LayerConfig(experts_per_token=8), 2, 5),
    "odd_one_token": (
        LayerConfig(hidden_size=7, expert_size=3, routed_experts=5, shared_experts=1, experts_per_token=2), 1, 1),
    "odd_shapes": (
        LayerConfig(hidden_size=33, expert_size=17, routed_experts=13, shared_experts=1, experts_per_token=4), 3, 11),
    "empty_expert": (LayerConfig(), 2, 7),
    "one_hot_expert": (LayerConfig(experts_per_token=1, shared_experts=1), 2, 7),
    "one_token": (LayerConfig(), 1, 1),
    "many_experts": (LayerConfig(hidden_size=32, expert_size=12, routed_experts=64, experts_per_token=6), 2, 12),
    "no_aux": (LayerConfig(alpha=0.0), 2, 9),
    "sigmoid_groups": (
        LayerConfig(routed_experts=16, shared_experts=1, experts_per_token=4, norm_topk_prob=True, alpha=0.0,
                    score="sigmoid", selection_bias=True, groups=4, groups_per_token=2, group_score="top2_sum",
                    routed_scaling_factor=2.5), 2, 9),
    "softmax_groups": (
        LayerConfig(routed_experts=16, experts_per_token=3, alpha=0.0, groups=4, groups_per_token=2,
                    routed_scaling_factor=16.0), 2, 9),
    "device_aux": (
        LayerConfig(routed_experts=12, seq_aux=False, alpha=0.25, device_alpha=0.5, devices=4), 2, 9),
}
BF16 = (LayerConfig(hidden_size=32, expert_size=16), 2, 9)


def inputs(name, cfg, batch, seq_len, seed):
    """{tensor name: float64 array}, every number float32-representable."""
    rng = np.random.default_rng(seed)
    d, f, e, s = cfg.hidden_size, cfg.expert_size, cfg.routed_experts, cfg.shared_experts
    t = {"x": support.draw(rng, batch, seq_len, d)}
    t["gate.weight"] = support.uniform(rng, e, d, bound=2 / d**0.5)
    if name in ("empty_expert", "one_hot_expert"):  # the first input is large; one gate row follows it
        t["x"][..., 0] = (np.abs(t["x"][..., 0]) + 2).astype(np.float32)
        t["gate.weight"][5, 0] = -8 if name == "empty_expert" else 2
    if cfg.selection_bias:
        t["gate.bias"] = support.draw(rng, e, std=0.2)
    shapes = {"experts": (e, f), "shared": (s * f,)}
    for group in ("experts", "shared") if s else ("experts",):
        *lead, width = shapes[group]
        t[f"{group}.gate_proj"] = support.draw(rng, *lead, width, d, std=d**-0.5)
        t[f"{group}.up_proj"] = support.draw(rng, *lead, width, d, std=d**-0.5)
        t[f"{group}.down_proj"] = support.draw(rng, *lead, d, width, std=f**-0.5)
    t["dy"] = support.draw(rng, batch, seq_len, d, std=1 / 32)  # small, so that the balance losses weigh in
    return t


def experts_of(t):
    experts = list(zip(*(t[f"experts.{projection}"] for projection in PROJECTIONS)))
    shared = [t[f"shared.{projection}"] for projection in PROJECTIONS] if "shared.up_proj" in t else None
    return experts, shared


def evaluate(arrays, cfg, dtype):
    """Outputs and gradients of one layer: ({name: tensor}, Routing)."""
    t = {name: torch.tensor(value, dtype=dtype) for name, value in arrays.items()}
    leaves = [name for name in t if name not in ("dy", "gate.bias")]
    for name in leaves:
        t[name].requires_grad_()
    experts, shared = experts_of(t)
    routing = ref.gate(t["x"], t["gate.weight"], t.get("gate.bias"), cfg)
    y = ref.train_forward(t["x"], routing, experts, shared)
    y.backward(t["dy"])
    zero = torch.zeros((), dtype=dtype)
    out = {"y_train": y, "y_eval": ref.eval_forward(t["x"], routing, experts, shared),
           "topk_idx": routing.idx, "topk_weight": routing.weight, "scores": routing.scores,
           "aux_loss": sum(routing.aux.values(), zero).reshape(1)}
    if cfg.device_alpha > 0:
        out.update({f"aux_loss_{kind}": loss.reshape(1) for kind, loss in routing.aux.items()})
    for name in leaves:
        out["dx" if name == "x" else f"d_{name}"] = t[name].grad
    return {name: support.array_of(value) for name, value in out.items()}, routing


def check_case(name, cfg, arrays, out, routing):
    """What the case is there for must hold, else the files would test less than they say."""
    assert support.relative(out["y_eval"], out["y_train"]) < 1e-13
    load = np.bincount(out["topk_idx"].ravel(), minlength=cfg.routed_experts)
    if name == "empty_expert":
        assert load[5] == 0 and not out["d_experts.up_proj"][5].any()
    if name == "one_hot_expert":
        assert load[5] == load.sum()
    without = dataclasses.replace(cfg, alpha=0.0, device_alpha=0.0)
    plain = evaluate(arrays, without, torch.float64)[0]
    if routing.aux and load.sum() < out["scores"].size:  # with K = E the loss is constant
        share = support.relative(plain["d_gate.weight"], out["d_gate.weight"])
        assert share > 0.02, f"{name}: the balance losses are only {share:.1e} of the gate's gradient"
    for change in ({"selection_bias": False}, {"groups": 1}):
        if dataclasses.replace(cfg, **change) != cfg:
            other = evaluate(arrays, dataclasses.replace(cfg, **change), torch.float64)[0]["topk_idx"]
            assert (np.sort(other) != np.sort(out["topk_idx"])).any(), f"{change} chooses the same experts"


def finite_differences(cfg, arrays, out, routing, rng, probes=6, step=1e-5):
    """Central differences of <y, dy> + balance losses with the routing frozen; returns the worst relative error."""
    def objective(changed):
        t = {name: torch.tensor(value) for name, value in changed.items()}
        frozen = ref.gate(t["x"], t["gate.weight"], t.get("gate.bias"), cfg, frozen=routing.idx)
        y = ref.eval_forward(t["x"], frozen, *experts_of(t))
        return float((y * t["dy"]).sum() + sum(frozen.aux.values()))

    worst = 0.0
    for name in arrays:
        if name in ("dy", "gate.bias"):
            continue
        gradient = out["dx" if name == "x" else f"d_{name}"]
        for _ in range(probes):  # the slope along a random direction sees every element
            direction = rng.standard_normal(gradient.shape)
            plus = objective({**arrays, name: arrays[name] + step * direction})
            minus = objective({**arrays, name: arrays[name] - step * direction})
            want = float((gradient * direction).sum())
            scale = np.linalg.norm(gradient) * np.linalg.norm(direction) / gradient.size**0.5
            worst = max(worst, abs((plus - minus) / (2 * step) - want) / max(scale, 1e-300))
    return worst


def metadata(cfg, batch, seq_len):
    def text(value):
        return f"{value:.9g}" if isinstance(value, float) else str(value).lower()

    return {key: text(value) for key, value in {**dataclasses.asdict(cfg), "batch": batch, "seq_len": seq_len}.items()}


def make_case(name, cfg, batch, seq_len, first_seed):
    for field in ("alpha", "device_alpha", "routed_scaling_factor"):  # the engine holds these as float
        setattr(cfg, field, float(np.float32(getattr(cfg, field))))
    for seed in range(first_seed, first_seed + 1000):
        arrays = inputs(name, cfg, batch, seq_len, seed)
        out, routing = evaluate(arrays, cfg, torch.float64)
        if ref.smallest_gap(routing, cfg) > MIN_GAP:
            break
    else:
        raise RuntimeError(f"{name}: no seed gives a clear choice of experts")
    assert all((value.astype(np.float32) == value).all() for value in arrays.values())
    check_case(name, cfg, arrays, out, routing)
    single = evaluate(arrays, cfg, torch.float32)[0]
    assert (single["topk_idx"] == out["topk_idx"]).all()
    f32 = max(support.relative(single[key], out[key]) for key in out)
    slope = finite_differences(cfg, arrays, out, routing, np.random.default_rng(seed))
    assert f32 < 2e-6 and slope < 1e-6, (name, f32, slope)
    print(f"{name}: seed {seed}, float32 off by {f32:.1e}, finite differences by {slope:.1e}")
    return support.safetensors_bytes({**arrays, **out}, metadata(cfg, batch, seq_len))


def make_bf16_case(cfg, batch, seq_len, first_seed):
    """Answers of the reference in bfloat16, and as exact.NAME the exact ones for the same numbers."""
    for seed in range(first_seed, first_seed + 1000):
        arrays = {name: support.to_bf16(value) for name, value in inputs("bf16", cfg, batch, seq_len, seed).items()}
        exact, routing = evaluate(arrays, cfg, torch.float64)
        out = evaluate(arrays, cfg, torch.bfloat16)[0]
        if ref.smallest_gap(routing, cfg) > MIN_GAP_BF16 and (out["topk_idx"] == exact["topk_idx"]).all():
            break
    else:
        raise RuntimeError("bf16: no seed gives a clear choice of experts")
    print(f"bf16: seed {seed}, the reference is off by",
          {key: f"{support.relative(out[key], exact[key]):.1e}" for key in out if key != "topk_idx"})
    out.update({f"exact.{name}": value for name, value in exact.items() if name != "topk_idx"})
    return support.safetensors_bytes({**arrays, **out}, metadata(cfg, batch, seq_len), bf16=arrays)


def main():
    torch.set_num_threads(1)
    output = support.Output(HERE)
    for i, (name, case) in enumerate(CASES.items()):
        output.write(f"{name}.safetensors", make_case(name, *case, first_seed=1000 * (i + 1)))
    output.write("bf16.safetensors", make_bf16_case(*BF16, first_seed=100000))
    output.exit()


if __name__ == "__main__":
    main()
