#!/usr/bin/env python3
"""Makes the golden model folders beside this script with transformers' own classes; --check compares instead.

Needs PyTorch and transformers 5.23 (PyPI). README.md says what the files hold. Names given as arguments limit what is made.
"""
import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent
GREEDY, MIN_MARGIN = 6, 2e-2  # steps; between the best and the second logit, relative to the logits' spread
JITTER = 3e-5  # relative noise on all weights that must change no choice of experts

BASE = dict(vocab_size=48, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=64, rms_norm_eps=1e-5, initializer_range=0.02, bos_token_id=0, eos_token_id=1,
            pad_token_id=None, attn_implementation="eager", experts_implementation="eager")
THETA = {"rope_type": "default", "rope_theta": 1e4}
# Positions beyond the original length; pairs on both sides of the ramp and one on it.
YARN = {"rope_type": "yarn", "rope_theta": 50.0, "factor": 6.0, "original_max_position_embeddings": 8, "beta_fast": 4.0,
        "beta_slow": 0.25}
# Latent attention: no two sizes alike.
LATENT = dict(num_key_value_heads=4, kv_lora_rank=12, q_lora_rank=14, qk_nope_head_dim=6, qk_rope_head_dim=8, v_head_dim=10,
              intermediate_size=20, moe_intermediate_size=8, first_k_dense_replace=1)

# name: (class, changes of BASE, whether to save experts stacked)
CASES = {
    # Heads wider than hidden_size / heads.
    "qwen3_moe": ("Qwen3Moe", dict(head_dim=8, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=10, intermediate_size=12,
                                   norm_topk_prob=True, rope_parameters={**THETA, "rope_theta": 1e6}), False),
    # As transformers has them in memory, and with what no release has.
    "qwen3_moe_stacked": ("Qwen3Moe", dict(head_dim=8, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=10,
                                           intermediate_size=12, norm_topk_prob=False, attention_bias=True,
                                           tie_word_embeddings=True, rope_parameters=THETA), True),
    # The large ones: queries and keys normed.
    "glm4_moe": ("Glm4Moe", dict(head_dim=8, n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=3, intermediate_size=20,
                                 moe_intermediate_size=10, first_k_dense_replace=1, routed_scaling_factor=2.5, attention_bias=True,
                                 use_qk_norm=True, rope_parameters={**THETA, "partial_rotary_factor": 0.5}), False),
    # Air, with groups, which no release has.
    "glm4_moe_air": ("Glm4Moe", dict(head_dim=12, n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2, intermediate_size=20,
                                     moe_intermediate_size=10, first_k_dense_replace=1, n_group=3, topk_group=2, attention_bias=True,
                                     rope_parameters={**THETA, "partial_rotary_factor": 0.5}), True),
    "olmoe": ("Olmoe", dict(num_key_value_heads=2, num_experts=6, num_experts_per_tok=3, intermediate_size=10,
                            rope_parameters=THETA), False),
    # As many key/value heads as heads, which GGUF's readers need.
    "olmoe_mha": ("Olmoe", dict(num_key_value_heads=4, num_experts=5, num_experts_per_tok=2, intermediate_size=10,
                                rope_parameters=THETA), False),
    # Two shared experts behind a gate, and fewer key/value heads than heads, as Qwen2-57B-A14B has them.
    "qwen2_moe": ("Qwen2Moe", dict(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=10, intermediate_size=12,
                                   shared_expert_intermediate_size=20, sliding_window=None,
                                   rope_parameters={**THETA, "rope_theta": 1e6}), False),
    # With what no release has.
    "qwen2_moe_stacked": ("Qwen2Moe", dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=12, intermediate_size=12,
                                           shared_expert_intermediate_size=12, norm_topk_prob=True, qkv_bias=False,
                                           sliding_window=None, tie_word_embeddings=True, rope_parameters=THETA), True),
    "mixtral": ("Mixtral", dict(num_local_experts=5, num_experts_per_tok=2, intermediate_size=14, rope_parameters=THETA), False),
    "mixtral_stacked": ("Mixtral", dict(num_local_experts=4, num_experts_per_tok=2, intermediate_size=14, head_dim=8,
                                        rope_parameters=THETA), True),
    "dots1": ("Dots1", dict(num_key_value_heads=4, head_dim=8, n_routed_experts=6, n_shared_experts=2, num_experts_per_tok=3,
                            intermediate_size=20, moe_intermediate_size=8, first_k_dense_replace=1, norm_topk_prob=True,
                            routed_scaling_factor=2.5, sliding_window=None, rope_parameters=THETA), False),
    "minimax_m2": ("MiniMaxM2", dict(head_dim=8, num_local_experts=6, num_experts_per_tok=3, intermediate_size=10,
                                     rope_parameters={**THETA, "rope_theta": 5e6, "partial_rotary_factor": 0.5}), False),
    "ernie4_5_moe": ("Ernie4_5_Moe", dict(moe_num_experts=6, moe_k=3, moe_num_shared_experts=2, intermediate_size=20,
                                          moe_intermediate_size=8, moe_layer_start_index=1, tie_word_embeddings=True,
                                          rope_parameters=THETA), False),
    # Numbers as lists per layer; a base stretched by alpha to 16 times, which f32 has; positions beyond the trained length.
    "hunyuan_v1_moe": ("HunYuanMoEV1", dict(head_dim=8, num_experts=6, moe_topk=[3, 3], intermediate_size=10,
                                            tie_word_embeddings=True, max_position_embeddings=12,
                                            rope_parameters={"rope_type": "dynamic", "rope_theta": 100.0, "factor": 1.0,
                                                             "alpha": 8.0}), False),
    # With what no release has.
    "hunyuan_v1_moe_stacked": ("HunYuanMoEV1", dict(head_dim=12, num_experts=5, moe_topk=2, intermediate_size=14,
                                                    attention_bias=True, rope_parameters=THETA), True),
    "qwen3_moe_yarn": ("Qwen3Moe", dict(head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=10,
                                        intermediate_size=12, norm_topk_prob=True, rope_parameters=YARN), False),
    # Lite: queries of the token itself, and sharper scores.
    "deepseek_v2_lite": ("DeepseekV2", {**LATENT, "q_lora_rank": None, "n_routed_experts": 6, "n_shared_experts": 2,
                                        "num_experts_per_tok": 3,
                                        "rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}}, False),
    # The large one: experts from the best groups, weights that are scaled, and cosines that are scaled.
    "deepseek_v2_stacked": ("DeepseekV2", {**LATENT, "n_routed_experts": 6, "n_shared_experts": 1, "num_experts_per_tok": 3,
                                   "topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2,
                                   "routed_scaling_factor": 4.0,
                                   "rope_parameters": {**YARN, "mscale": 0.5, "mscale_all_dim": 0.707}}, True),
    "deepseek_v3": ("DeepseekV3", {**LATENT, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3,
                                   "n_group": 4, "topk_group": 2,
                                   "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}, False),
    # Moonlight: no second projection of queries, no groups, no stretch; eps of 1e-5 but for the latent's norm.
    "moonlight": ("DeepseekV3", {**LATENT, "q_lora_rank": None, "n_routed_experts": 6, "n_shared_experts": 2,
                                 "num_experts_per_tok": 3, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.446,
                                 "rope_parameters": {**THETA, "rope_theta": 5e4}}, False),
    "kimi_k2": ("DeepseekV3", {**LATENT, "n_routed_experts": 6, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1,
                               "topk_group": 1, "routed_scaling_factor": 2.827,
                               "rope_parameters": {**YARN, "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0,
                                                   "mscale_all_dim": 1.0}}, False),
    # Values as wide as queries; heads that do not divide hidden_size.
    "glm4_moe_lite": ("Glm4MoeLite", {**{k: v for k, v in LATENT.items() if k != "first_k_dense_replace"},
                                      "num_attention_heads": 5, "num_key_value_heads": 5, "v_head_dim": 14,
                                      "n_routed_experts": 6, "n_shared_experts": 1, "num_experts_per_tok": 3,
                                      "rope_parameters": {**THETA, "rope_theta": 1e6}}, False),
}
# No class of its own: the hub's config has another model_type.
MODEL_TYPES = {"kimi_k2": "kimi_k2"}


def make_model(name):
    kind, changes, _ = CASES[name]
    config_class = getattr(transformers, kind + "Config")
    config = config_class(**{**BASE, **changes})
    return getattr(transformers, kind + "ForCausalLM")(config).float().eval()


def draw(model, seed):
    """Larger than a real initialisation, so that attention and routing are far from uniform; nothing stays 0 or 1."""
    rng = np.random.default_rng(seed)
    tensors = list(model.named_parameters()) + [(n, b) for n, b in model.named_buffers() if "correction_bias" in n]
    with torch.no_grad():
        for name, p in tensors:
            values = rng.standard_normal(tuple(p.shape))
            if "correction_bias" in name:
                values *= 0.1
            elif name.endswith(".bias"):
                values *= 0.5
            elif "norm" in name:
                values = 1 + 0.2 * values
            else:
                values *= p.shape[-1] ** -0.5
            p.copy_(torch.tensor(values, dtype=p.dtype))


def routed(model, ids):
    """logits, and per MoE layer the chosen experts [tokens, K] and their weights."""
    chosen = {}
    hooks = [m.register_forward_pre_hook(lambda _, args, n=n: chosen.__setitem__(n, (args[1], args[2])))
             for n, m in model.named_modules() if n.endswith(".experts")]
    logits = model(input_ids=ids).logits
    for hook in hooks:
        hook.remove()
    return logits, {int(n.split(".")[2]): c for n, c in chosen.items()}


def steady(model, ids):
    """Whether a little noise leaves all choices as they are."""
    with torch.no_grad():
        _, before = routed(model, ids)
        kept = {n: p.clone() for n, p in model.named_parameters()}
        same = True
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            for p in model.parameters():
                p.mul_(1 + JITTER * torch.randn(p.shape, generator=generator))
            _, after = routed(model, ids)
            same = same and all(torch.equal(before[l][0].sort(-1)[0], after[l][0].sort(-1)[0]) for l in before)
            for n, p in model.named_parameters():
                p.copy_(kept[n])
    return same


@torch.no_grad()
def greedy(model, ids):
    start, margin = ids.shape[1], np.inf
    for _ in range(GREEDY):
        last = model(input_ids=ids).logits[:, -1]
        best = last.topk(2)[0]
        margin = min(margin, float(((best[:, 0] - best[:, 1]) / last.std(-1)).min()))
        ids = torch.cat((ids, last.argmax(-1, keepdim=True)), 1)
    return ids, ids[:, start:], margin


def save(model, folder, stacked):
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, save_original_format=not stacked)
    generation = folder / "generation_config.json"
    generation.unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = MODEL_TYPES.get(folder.name, config["model_type"])
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def golden(model, ids):
    targets = torch.cat((ids[:, 1:], torch.full_like(ids[:, :1], -100)), 1)
    model.zero_grad()
    logits, chosen = routed(model, ids)
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
    loss.backward()
    out = {"input_ids": ids.int(), "targets": targets.int(), "logits": logits, "loss": loss.reshape(1),
           "aux_loss": torch.zeros(1)}
    for layer, (experts, weights) in chosen.items():
        out[f"topk_idx.{layer}"], out[f"topk_weights.{layer}"] = experts.int(), weights
    with torch.no_grad():  # saved as if they were the weights, the gradients get the names of the file
        for p in model.parameters():
            p.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, save_original_format=True)
        grads = load_file(pathlib.Path(folder) / "model.safetensors")
    out = {name: np.ascontiguousarray(t.detach().numpy()) for name, t in out.items()}
    out.update({f"grad.{name}": g for name, g in grads.items() if "correction_bias" not in name})
    return out


def make(name, folder):
    stacked = CASES[name][2]
    for seed in range(1000):
        model = make_model(name)
        draw(model, seed)
        ids = torch.tensor(np.random.default_rng(seed + 5000).integers(2, 48, (2, 11)))
        whole, continued, margin = greedy(model, ids)
        if margin > MIN_MARGIN and steady(model, whole):
            break
    save(model, folder, stacked)
    out = golden(model, ids)
    out["greedy_ids"] = continued.int().numpy()
    save_file(out, folder / "golden.safetensors")
    print(name, "seed", seed, sum(f.stat().st_size for f in folder.iterdir()), "bytes")


def compare(name, folder):
    """The largest relative difference of what would be made now."""
    made, kept = load_file(folder / "golden.safetensors"), load_file(HERE / name / "golden.safetensors")
    assert made.keys() == kept.keys(), made.keys() ^ kept.keys()
    worst = 0.0
    for key, value in kept.items():
        difference = np.linalg.norm((made[key] - value).astype(np.float64)) / max(1e-20, np.linalg.norm(value.astype(np.float64)))
        worst = max(worst, difference)
    return worst


def main():
    check = "--check" in sys.argv
    names = [a for a in sys.argv[1:] if not a.startswith("-")] or list(CASES)
    torch.manual_seed(0)
    for name in names:
        if not check:
            make(name, HERE / name)
            continue
        with tempfile.TemporaryDirectory() as folder:
            make(name, pathlib.Path(folder) / name)
            worst = compare(name, pathlib.Path(folder) / name)
            print(f"{name}: differs by {worst:.1e}")
            assert worst < 1e-4, name


if __name__ == "__main__":
    main()
