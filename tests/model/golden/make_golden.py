#!/usr/bin/env python3
"""Makes the golden model folders beside this script; --check compares instead.

Needs numpy and PyTorch (Debian: python3-numpy, python3-torch). README.md says what the files hold.
"""
import json
import pathlib
import sys

import numpy as np
import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1]), str(HERE.parents[1] / "moe" / "golden")]
import golden_support as support
import reference_layer as moe
import reference_model as ref

MIN_GAP = 1e-4  # between neighbours in a token's ranking of experts, relative
MIN_MARGIN = 1e-3  # between the best and the second logit of a greedy step, relative to the logits' spread
# The same for scores and logits that were rounded to bf16 on their way through the layers.
MIN_GAP_BF16, MIN_MARGIN_BF16 = 0.03, 0.1
GREEDY = 8
STEPS, BATCH, LENGTH = 10, 3, 12  # of the training cases
ADAMW = {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.0}
CLIP = 1.0

BASE = {
    "architectures": ["DeepseekForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "aux_loss_alpha": 0.125, "bos_token_id": 0, "eos_token_id": 1, "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 32,
    "initializer_range": 0.02, "intermediate_size": 40, "max_position_embeddings": 64, "model_type": "deepseek",
    "moe_intermediate_size": 6, "moe_layer_freq": 1, "n_routed_experts": 8, "n_shared_experts": 2,
    "norm_topk_prob": False, "num_attention_heads": 4, "num_experts_per_tok": 3, "num_hidden_layers": 2,
    "num_key_value_heads": 4, "pretraining_tp": 1, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000.0,
    "scoring_func": "softmax", "seq_aux": True, "tie_word_embeddings": False, "torch_dtype": "float32",
    "use_cache": True, "vocab_size": 64,
}

# name: (changes of BASE, batch, seq_len)
CASES = {
    "base": ({"num_hidden_layers": 3}, 2, 17),
    "gqa": ({"num_key_value_heads": 2}, 2, 13),
    "attention_bias": ({"attention_bias": True}, 2, 11),
    "rope_linear": ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 1, 24),
    "rope_dynamic": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 8}, 1, 21),
    "moe_layer_freq": ({"moe_layer_freq": 2, "num_hidden_layers": 3}, 2, 9),
    "no_shared": ({"n_shared_experts": None, "first_k_dense_replace": 0}, 2, 10),
    "norm_topk": ({"norm_topk_prob": True}, 2, 10),
    "tied": ({"tie_word_embeddings": True}, 2, 10),
    "head_dim": ({"head_dim": 12, "num_key_value_heads": 1, "rope_theta": 1.4e6, "rms_norm_eps": 1e-3}, 2, 10),
    "batch_aux": ({"seq_aux": False}, 3, 10),
}
BF16 = ({"torch_dtype": "bfloat16"}, 1, 13)
TRAINING = {"train_seq_aux": {"seq_aux": True}, "train_batch_aux": {"seq_aux": False}}


def draw_weights(config, rng):
    """Larger than a real initialisation, so that attention and routing are far from uniform."""
    weights = {}
    for name, shape in ref.tensor_shapes(config).items():
        if name.endswith("norm.weight"):
            weights[name] = (1 + support.draw(rng, *shape, std=0.2)).astype(np.float32).astype(np.float64)
        elif name.endswith(".bias"):
            weights[name] = support.draw(rng, *shape, std=0.5)
        else:
            weights[name] = support.draw(rng, *shape, std=shape[-1] ** -0.5)
    return weights


def tensors_of(weights, dtype, grad=True):
    return {name: torch.tensor(value, dtype=dtype, requires_grad=grad) for name, value in weights.items()}


def smallest_gap(result, config):
    return min(moe.smallest_gap(routing, ref.layer_config(config)) for routing in result.routing.values())


def evaluate(weights, config, ids, dtype):
    """Everything golden.safetensors holds: ({name: array}, least gap)."""
    w = tensors_of(weights, dtype)
    ids = torch.tensor(ids)
    targets = torch.cat((ids[:, 1:], torch.full_like(ids[:, :1], -100)), 1)
    result = ref.forward(w, config, ids)
    loss = ref.lm_loss(result.logits, targets)
    loss.backward()
    out = {"input_ids": ids, "targets": targets, "logits": result.logits, "loss": loss.reshape(1),
           "aux_loss": result.aux_loss().reshape(1)}
    out.update({f"hidden.{n}": hidden for n, hidden in enumerate(result.hidden)})
    out.update({f"topk_idx.{n}": routing.idx for n, routing in result.routing.items()})
    out.update({f"grad.{name}": tensor.grad if tensor.grad is not None else torch.zeros_like(tensor)
                for name, tensor in w.items()})
    return {name: support.array_of(value) for name, value in out.items()}, smallest_gap(result, config)


@torch.no_grad()
def greedy(weights, config, ids, dtype=torch.float64):
    """The GREEDY most likely next tokens after ids, and the least margin and gap met on the way."""
    w, ids, margins = tensors_of(weights, dtype, grad=False), torch.tensor(ids), []
    start = ids.shape[1]
    for _ in range(GREEDY):
        result = ref.forward(w, config, ids)
        last = result.logits[:, -1]
        best = last.topk(2)[0]
        margins.append(float(((best[:, 0] - best[:, 1]) / last.std(-1)).min()))
        ids = torch.cat((ids, last.argmax(-1, keepdim=True)), 1)
    return ids[:, start:].numpy(), min(margins), smallest_gap(result, config)


def finite_differences(weights, config, ids, out, rng, step=1e-6):
    """Slope of loss + balance losses along one random direction over all weights, against the gradient."""
    directions = {name: rng.standard_normal(value.shape) for name, value in weights.items()}

    def objective(sign):
        moved = {name: value + sign * step * directions[name] for name, value in weights.items()}
        return objective_value(moved, config, ids)

    slope = (objective(1) - objective(-1)) / (2 * step)
    want = sum(float((out[f"grad.{name}"] * direction).sum()) for name, direction in directions.items())
    scale = sum(float((out[f"grad.{name}"] ** 2).sum()) for name in directions) ** 0.5
    return abs(slope - want) / scale


@torch.no_grad()
def objective_value(weights, config, ids):
    """LM loss + balance losses. The routing is not frozen: a step far below the gap leaves it as it is."""
    ids = torch.tensor(ids)
    result = ref.forward(tensors_of(weights, torch.float64, grad=False), config, ids)
    return float(ref.lm_loss(result.logits[:, :-1], ids[:, 1:]) + result.aux_loss())


def check_changes(name, changes, config, weights, ids, out):
    """What sets a case apart must show in its numbers, else a reader could ignore it and pass."""
    for key in changes:
        other = {**config, key: BASE[key]} if key in BASE else config
        if other != config and ref.tensor_shapes(other) == ref.tensor_shapes(config):
            changed, _ = evaluate(weights, other, ids, torch.float64)
            difference = support.relative(changed["aux_loss" if key == "seq_aux" else "logits"],
                                          out["aux_loss" if key == "seq_aux" else "logits"])
            assert difference > 3e-3, (name, key, difference)
    plain, _ = evaluate(weights, {**config, "aux_loss_alpha": 0.0}, ids, torch.float64)
    gates = [key for key in out if key.startswith("grad.") and key.endswith("mlp.gate.weight")]
    share = min(support.relative(plain[key], out[key]) for key in gates)
    assert share > 0.02, f"{name}: the balance losses are only {share:.1e} of a gate's gradient"


def make_case(name, changes, batch, seq_len, first_seed):
    """Returns (config, weights, golden tensors)."""
    config = {**BASE, **changes}
    for seed in range(first_seed, first_seed + 1000):
        rng = np.random.default_rng(seed)
        weights = draw_weights(config, rng)
        ids = rng.integers(0, config["vocab_size"], (batch, seq_len))
        out, gap = evaluate(weights, config, ids, torch.float64)
        if gap < MIN_GAP:
            continue
        if name == "rope_dynamic":  # a cache keeps old rotations, so generation is not defined by one forward
            break
        out["greedy_ids"], margin, gap = greedy(weights, config, ids)
        if margin > MIN_MARGIN and gap > MIN_GAP:
            break
    else:
        raise RuntimeError(f"{name}: no seed gives clear choices")
    single, _ = evaluate(weights, config, ids, torch.float32)
    f32 = max(support.relative(single[key], out[key]) for key in single)
    slope = finite_differences(weights, config, ids, out, rng)
    check_changes(name, changes, config, weights, ids, out)
    assert f32 < 5e-6 and slope < 1e-6, (name, f32, slope)
    print(f"{name}: seed {seed}, float32 off by {f32:.1e}, finite differences by {slope:.1e}")
    return config, weights, out


def make_bf16_case(changes, batch, seq_len, first_seed):
    """As make_case, with the answers of the reference in bfloat16, and as exact.NAME the exact ones."""
    config = {**BASE, **changes}
    for seed in range(first_seed, first_seed + 10000):
        rng = np.random.default_rng(seed)
        weights = {name: support.to_bf16(value) for name, value in draw_weights(config, rng).items()}
        ids = rng.integers(0, config["vocab_size"], (batch, seq_len))
        exact, gap = evaluate(weights, config, ids, torch.float64)
        if gap < MIN_GAP_BF16:
            continue
        continuation, margin, gap = greedy(weights, config, ids)
        if margin < MIN_MARGIN_BF16 or gap < MIN_GAP_BF16:
            continue
        out, _ = evaluate(weights, config, ids, torch.bfloat16)
        out["greedy_ids"] = greedy(weights, config, ids, torch.bfloat16)[0]
        choices = [key for key in exact if key.startswith("topk_idx.")]
        if all((out[key] == exact[key]).all() for key in choices) and (out["greedy_ids"] == continuation).all():
            break
    else:
        raise RuntimeError("bf16: no seed gives clear choices")
    errors = {key: support.relative(out[key], exact[key]) for key in exact if exact[key].dtype == np.float64}
    print(f"bf16: seed {seed}, the reference is off by {errors['logits']:.1e} in the logits and at most "
          f"{max(errors.values()):.1e} ({max(errors, key=errors.get)})")
    out.update({f"exact.{key}": exact[key] for key in errors})
    return config, weights, out


def model_bytes(weights, bf16=()):
    return support.safetensors_bytes(weights, {"format": "pt"}, bf16)


def json_bytes(value):
    return (json.dumps(value, indent=2) + "\n").encode()


def write_sharded(output, folder, weights, shards):
    """The same tensors in several files of about equal size, with Hugging Face's index."""
    total, seen, files = sum(value.size * 4 for value in weights.values()), 0, [{} for _ in range(shards)]
    for name, value in weights.items():
        files[min(seen * shards // total, shards - 1)][name] = value
        seen += value.size * 4
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    for name, part in zip(names, files):
        output.write(f"{folder}/{name}", model_bytes(part))
    weight_map = {tensor: name for name, part in zip(names, files) for tensor in part}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    output.write(f"{folder}/model.safetensors.index.json", json_bytes(index))


def training_ids(config, rng):
    """Lines of LENGTH + 1 ids: walks with small steps, so that there is something to learn."""
    starts = rng.integers(0, config["vocab_size"], (STEPS * BATCH, 1))
    steps = rng.integers(1, 4, (STEPS * BATCH, LENGTH))
    return np.concatenate((starts, starts + steps.cumsum(1)), 1) % config["vocab_size"]


def train(weights, config, lines, dtype):
    """Ten steps of AdamW: (step records, final weights, least gap)."""
    w = tensors_of(weights, dtype)
    optimizer = torch.optim.AdamW(w.values(), foreach=False, **ADAMW)
    records, gap = [], np.inf
    for step in range(STEPS):
        batch = torch.tensor(lines[step * BATCH : (step + 1) * BATCH])
        optimizer.zero_grad(set_to_none=False)
        result = ref.forward(w, config, batch[:, :-1])
        loss = ref.lm_loss(result.logits, batch[:, 1:])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(w.values(), CLIP)
        optimizer.step()
        gap = min(gap, smallest_gap(result, config))
        values = {"loss": loss, "aux_loss": result.aux_loss(), "grad_norm": norm}
        records.append({"step": step, **{key: float(f"{float(value):.12g}") for key, value in values.items()}})
    return records, {name: value.detach().numpy() for name, value in w.items()}, gap


def make_training(name, changes, first_seed):
    config = {**BASE, **changes}
    for seed in range(first_seed, first_seed + 1000):
        rng = np.random.default_rng(seed)
        weights, lines = draw_weights(config, rng), training_ids(config, rng)
        weights["model.norm.weight"] *= 0.25  # brings the gradient's norm to about the clipping limit
        records, final, gap = train(weights, config, lines, torch.float64)
        if gap > MIN_GAP:
            break
    else:
        raise RuntimeError(f"{name}: no seed keeps the choices clear for {STEPS} steps")
    clipped = sum(record["grad_norm"] > CLIP for record in records)
    assert 2 <= clipped <= STEPS - 2, [record["grad_norm"] for record in records]
    single, single_final, _ = train(weights, config, lines, torch.float32)
    worst = max(abs(a[key] / b[key] - 1) for a, b in zip(single, records) for key in ("loss", "aux_loss", "grad_norm"))
    drift = max(support.relative(single_final[key], final[key]) for key in final)
    assert worst < 2e-6 and drift < 5e-6, (name, worst, drift)
    print(f"{name}: seed {seed}, float32 off by {worst:.1e} in the records, {drift:.1e} in the final weights")
    return config, weights, lines, records, final


def main():
    torch.set_num_threads(1)
    output = support.Output(HERE)
    for i, (name, case) in enumerate(CASES.items()):
        config, weights, out = make_case(name, *case, first_seed=1000 * (i + 1))
        output.write(f"{name}/config.json", json_bytes(config))
        output.write(f"{name}/model.safetensors", model_bytes(weights))
        output.write(f"{name}/golden.safetensors", support.safetensors_bytes(out))
        if name == "base":
            output.write("base_sharded/config.json", json_bytes(config))
            write_sharded(output, "base_sharded", weights, 3)
            kept = {key: value for key, value in out.items() if not key.startswith("grad.")}
            output.write("base_sharded/golden.safetensors", support.safetensors_bytes(kept))
    config, weights, out = make_bf16_case(*BF16, first_seed=200000)
    output.write("bf16/config.json", json_bytes(config))
    output.write("bf16/model.safetensors", model_bytes(weights, bf16=weights))
    output.write("bf16/golden.safetensors", support.safetensors_bytes(out))
    for i, (name, changes) in enumerate(TRAINING.items()):
        config, weights, lines, records, final = make_training(name, changes, first_seed=100000 * (i + 1))
        output.write(f"{name}/config.json", json_bytes(config))
        output.write(f"{name}/model.safetensors", model_bytes(weights))
        output.write(f"{name}/train.ids", "".join(" ".join(map(str, line)) + "\n" for line in lines).encode())
        recipe = {"batch_size": BATCH, "seq_len": LENGTH, "clip": CLIP, **ADAMW, "steps": records}
        output.write(f"{name}/steps.json", json_bytes(recipe))
        output.write(f"{name}/final.safetensors", model_bytes(final))
    output.exit()


if __name__ == "__main__":
    main()
