"""The language model of model_type "deepseek" in PyTorch, written after the reference implementation.

Plain functions over a dict {checkpoint tensor name: tensor} and a dict config (config.json), any float type.
"""
import dataclasses

import torch
from torch.nn import functional

import reference_layer as moe

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


@dataclasses.dataclass
class Result:
    logits: torch.Tensor  # [batch, seq, vocab]
    hidden: list  # after every layer, before the final norm: [batch, seq, D]
    routing: dict  # MoE layer -> Routing

    def aux_loss(self):
        zero = torch.zeros((), dtype=self.logits.dtype)
        return sum((loss for routing in self.routing.values() for loss in routing.aux.values()), zero)


def head_dim(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def is_moe(config, layer):
    """The modulo is on the layer's own index, not on its distance from the first MoE layer."""
    return (config["n_routed_experts"] is not None and layer >= config["first_k_dense_replace"]
            and layer % config["moe_layer_freq"] == 0)


def tensor_shapes(config):
    """{name: shape} of the checkpoint, in the order of the modules."""
    d, width = config["hidden_size"], config["intermediate_size"]
    heads = {name: config[key] * head_dim(config) for name, key in
             (("q", "num_attention_heads"), ("k", "num_key_value_heads"), ("v", "num_key_value_heads"))}
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], d)}

    def add_mlp(prefix, size):
        shapes.update({f"{prefix}.gate_proj.weight": (size, d), f"{prefix}.up_proj.weight": (size, d),
                       f"{prefix}.down_proj.weight": (d, size)})

    for n in range(config["num_hidden_layers"]):
        layer = f"model.layers.{n}"
        for name, rows, columns in [(k, v, d) for k, v in heads.items()] + [("o", d, heads["q"])]:
            shapes[f"{layer}.self_attn.{name}_proj.weight"] = (rows, columns)
            if config["attention_bias"]:
                shapes[f"{layer}.self_attn.{name}_proj.bias"] = (rows,)
        if is_moe(config, n):
            for e in range(config["n_routed_experts"]):
                add_mlp(f"{layer}.mlp.experts.{e}", config["moe_intermediate_size"])
            shapes[f"{layer}.mlp.gate.weight"] = (config["n_routed_experts"], d)
            if config["n_shared_experts"]:
                add_mlp(f"{layer}.mlp.shared_experts", config["moe_intermediate_size"] * config["n_shared_experts"])
        else:
            add_mlp(f"{layer}.mlp", width)
        shapes[f"{layer}.input_layernorm.weight"] = shapes[f"{layer}.post_attention_layernorm.weight"] = (d,)
    shapes["model.norm.weight"] = (d,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], d)
    return shapes


def wide(x):
    """Norms and the softmax of attention are computed in float32 at least, as in the reference."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def rms_norm(x, weight, eps):
    x32 = wide(x)
    return weight * (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def rotations(config, seq_len, dtype):
    """Cosines and sines [seq, head_dim / 2]; element i turns the pair (i, i + head_dim / 2)."""
    dim, base, scaling = head_dim(config), config["rope_theta"], config["rope_scaling"]
    positions = torch.arange(seq_len, dtype=torch.float64)
    if scaling and scaling["type"] == "linear":
        positions = positions / scaling["factor"]
    elif scaling and scaling["type"] == "dynamic" and seq_len > config["max_position_embeddings"]:
        stretch = scaling["factor"] * seq_len / config["max_position_embeddings"] - (scaling["factor"] - 1)
        base = base * stretch ** (dim / (dim - 2))
    inverse = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.outer(positions, inverse)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def attention(x, w, prefix, config, turn):
    batch, seq_len, _ = x.shape
    dim, groups = head_dim(config), config["num_attention_heads"] // config["num_key_value_heads"]

    def project(name, value):
        return functional.linear(value, w[f"{prefix}.{name}_proj.weight"], w.get(f"{prefix}.{name}_proj.bias"))

    q, k, v = (project(name, x).view(batch, seq_len, -1, dim).transpose(1, 2) for name in "qkv")
    q, k = rotate(q, *turn), rotate(k, *turn)
    k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))  # query head h reads key/value head h / groups
    scores = q @ k.transpose(2, 3) / dim**0.5
    future = torch.ones(seq_len, seq_len, dtype=torch.bool).triu(1)
    mixed = wide(scores.masked_fill(future, -torch.inf)).softmax(-1).to(x.dtype) @ v
    return project("o", mixed.transpose(1, 2).reshape(batch, seq_len, -1))


def mlp_weights(w, prefix):
    return [w[f"{prefix}.{projection}.weight"] for projection in PROJECTIONS]


def layer_config(config):
    return moe.LayerConfig(
        hidden_size=config["hidden_size"], expert_size=config["moe_intermediate_size"],
        routed_experts=config["n_routed_experts"], shared_experts=config["n_shared_experts"] or 0,
        experts_per_token=config["num_experts_per_tok"], norm_topk_prob=config["norm_topk_prob"],
        seq_aux=config["seq_aux"], alpha=config["aux_loss_alpha"])


def forward(w, config, ids):
    """Train-mode forward: the balance losses join the gradient on their own."""
    x, eps, result = w["model.embed_tokens.weight"][ids], config["rms_norm_eps"], Result(None, [], {})
    turn = rotations(config, ids.shape[1], x.dtype)
    for n in range(config["num_hidden_layers"]):
        layer = f"model.layers.{n}"
        h = rms_norm(x, w[f"{layer}.input_layernorm.weight"], eps)
        x = x + attention(h, w, f"{layer}.self_attn", config, turn)
        h = rms_norm(x, w[f"{layer}.post_attention_layernorm.weight"], eps)
        if is_moe(config, n):
            cfg, prefix = layer_config(config), f"{layer}.mlp"
            result.routing[n] = moe.gate(h, w[f"{prefix}.gate.weight"], None, cfg)
            experts = [mlp_weights(w, f"{prefix}.experts.{e}") for e in range(cfg.routed_experts)]
            shared = mlp_weights(w, f"{prefix}.shared_experts") if cfg.shared_experts else None
            x = x + moe.train_forward(h, result.routing[n], experts, shared)
        else:
            x = x + moe.swiglu(h, *mlp_weights(w, f"{layer}.mlp"))
        result.hidden.append(x)
    head = w["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    result.logits = wide(rms_norm(x, w["model.norm.weight"], eps) @ head.T)
    return result


def lm_loss(logits, targets):
    """Mean cross entropy over the positions whose target is not -100."""
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=-100)
