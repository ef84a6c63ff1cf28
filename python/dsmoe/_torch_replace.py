"""Puts MoeLayer in place of the MoE blocks of Hugging Face models whose gate is one that the layer has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

# Blocks that are known, by the names of their classes: the remote code of DeepSeek's repositories and transformers'. How
# their gates choose is read from their fields; that the result is the same is checked with numbers.
_KNOWN = (
    "DeepseekMoE",
    "DeepseekV2MoE",
    "DeepseekV2Moe",
    "DeepseekV3MoE",
    "Qwen2MoeSparseMoeBlock",
    "Qwen3MoeSparseMoeBlock",
)


@dataclass
class Replaced:
    """What replace() did: names of the blocks that are MoeLayers now, and of those that are not, with the reason."""

    replaced: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} MoE blocks replaced, {len(self.kept)} kept"]
        return "\n".join(lines + [f"  {name}: {reason}" for name, reason in self.kept.items()])


class _Refused(Exception):
    pass


class MoeBlock(nn.Module):
    """A MoeLayer with what some blocks have around it: a shared expert with a gate of its own, and a second output."""

    def __init__(self, layer: nn.Module, block: nn.Module, returns_logits: bool) -> None:
        super().__init__()
        self.layer = layer
        self.shared_expert = getattr(block, "shared_expert", None)
        self.shared_expert_gate = getattr(block, "shared_expert_gate", None)
        self.returns_logits = returns_logits

    def forward(self, x: Tensor) -> Any:
        y = self.layer(x)
        if self.shared_expert_gate is not None:
            y = y + torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)
        # The old block's second output is for transformers' own balance loss; the layer has its own.
        return (y, nn.functional.linear(x.flatten(0, -2), self.layer.gate)) if self.returns_logits else y

    # The layer's tensors stand where the block's stood.
    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        out = super().state_dict(*args, destination=destination, prefix=prefix, keep_vars=keep_vars)
        inner = prefix + "layer."
        for name in [k for k in out if k.startswith(inner)]:
            out[prefix + name[len(inner) :]] = out.pop(name)
        return out

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        own = [k for k in state_dict if k.startswith(prefix) and k[len(prefix) :].startswith(("gate.", "experts."))]
        for name in own:
            state_dict[f"{prefix}layer.{name[len(prefix) :]}"] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _find(name: str, default: Any, *places: Any) -> Any:
    for place in places:
        value = getattr(place, name, None)
        if value is not None:
            return value
    return default


def _mlp(mlp: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    parts = [getattr(mlp, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if not all(isinstance(p, nn.Linear) for p in parts):
        raise _Refused("its experts are not gate_proj, up_proj and down_proj")
    if any(p.bias is not None for p in parts):
        raise _Refused("its experts have biases")
    return tuple(p.weight for p in parts)  # type: ignore[return-value]


def _activation(module: nn.Module) -> None:
    act = getattr(module, "act_fn", None)
    if act is None:
        return
    x = torch.linspace(-3, 3, 13)
    if not torch.allclose(act(x), nn.functional.silu(x), atol=1e-6):
        raise _Refused("its activation is not silu")


def _stacks(block: nn.Module) -> tuple[Tensor, Tensor]:
    """[E, 2, F, D] and [E, D, F] of the routed experts."""
    experts = block.experts
    if isinstance(getattr(experts, "gate_up_proj", None), nn.Parameter):
        if getattr(experts, "gate_up_proj_bias", None) is not None:
            raise _Refused("its experts have biases")
        _activation(experts)
        return experts.gate_up_proj.unflatten(1, (2, -1)), experts.down_proj
    if not isinstance(experts, nn.ModuleList) or any(e is None for e in experts):
        raise _Refused("its experts are not all in one module list of this process")
    _activation(experts[0])
    parts = [_mlp(e) for e in experts]
    return torch.stack([torch.stack((g, u)) for g, u, _ in parts]), torch.stack([d for _, _, d in parts])


def _config(block: nn.Module, experts: int, width: int, hidden: int) -> dict[str, Any]:
    gate, config = block.gate, getattr(block, "config", None)
    places, name = (gate, block, config), type(block).__name__
    bias = getattr(gate, "e_score_correction_bias", None)
    sigmoid = bias is not None or _find("scoring_func", "softmax", gate, config) == "sigmoid"
    method = _find("topk_method", "noaux_tc" if bias is not None else "greedy", gate, config)
    known = {"greedy": "max", "gready": "max", "group_limited_greedy": "max", "noaux_tc": "top2_sum"}
    if method not in known:
        raise _Refused(f"its gate chooses by {method!r}, which the layer does not have")
    grouped = method in ("group_limited_greedy", "noaux_tc")
    # transformers' gate of DeepSeek-V2 never normalises, whatever the config says; DeepSeek's own does.
    norm = _find("norm_topk_prob", False, gate, None if name == "DeepseekV2Moe" else block)
    scale = float(_find("routed_scaling_factor", 1.0, gate, block))
    found = dict(
        hidden_size=hidden,
        expert_size=width,
        routed_experts=experts,
        experts_per_token=int(_find("top_k", 0, gate, block) or _find("num_experts_per_tok", 0, block, config)),
        score="sigmoid" if sigmoid else "softmax",
        norm_topk_prob=bool(norm),
        routed_scaling_factor=scale,
        selection_bias=bias is not None,
        groups=int(_find("num_group", 0, *places) or _find("n_group", 1, *places)) if grouped else 1,
        groups_per_token=int(_find("topk_group", 1, *places)) if grouped else 1,
        group_score=known[method],
    )
    alpha = float(_find("alpha", 0.0, gate))
    if alpha > 0:
        found["seq_balance_alpha" if _find("seq_aux", True, gate) else "batch_balance_alpha"] = alpha
    return found


def _build(block: nn.Module) -> nn.Module:
    from .torch import MoeLayer

    if type(block).__name__ not in _KNOWN:
        raise _Refused(f"{type(block).__name__} is not a block that is known")
    weight = getattr(block.gate, "weight", None)
    if weight is None or weight.dim() != 2 or getattr(block.gate, "bias", None) is not None:
        raise _Refused("its gate is not one matrix without a bias")
    if weight.device.type not in ("cpu", "cuda"):
        raise _Refused(f"its weights are on the device {weight.device.type}; the layer knows cpu and cuda")
    if weight.dtype not in (torch.float32, torch.bfloat16):
        raise _Refused(f"its dtype is {weight.dtype}; the layer has float32 and bfloat16")
    gate_up, down = _stacks(block)
    experts, _, width, hidden = gate_up.shape
    if gate_up.dtype not in (torch.float32, torch.bfloat16):
        raise _Refused(f"its dtype is {gate_up.dtype}; the layer has float32 and bfloat16")
    shared_mlp = getattr(block, "shared_experts", None)
    shared = 0
    if shared_mlp is not None:
        _activation(shared_mlp)
        g, u, d = _mlp(shared_mlp)
        shared, rest = divmod(g.shape[0], width)
        if rest:
            raise _Refused(f"its shared experts have a width of {g.shape[0]}, no multiple of {width}")
        gate_up = torch.cat((torch.stack((g.unflatten(0, (shared, width)), u.unflatten(0, (shared, width))), 1), gate_up))
        down = torch.cat((d.unflatten(1, (shared, width)).permute(1, 0, 2), down))
    config = _config(block, experts, width, hidden)
    try:
        layer = MoeLayer(shared_experts=shared, attach_aux_loss=True, dtype=gate_up.dtype, device="meta", **config)
    except Exception as error:
        raise _Refused(str(error)) from error
    layer.gate = nn.Parameter(weight.detach().clone(), requires_grad=weight.requires_grad)
    layer.gate_up = nn.Parameter(gate_up.detach().contiguous(), requires_grad=gate_up.requires_grad)
    layer.down = nn.Parameter(down.detach().contiguous(), requires_grad=down.requires_grad)
    if config["selection_bias"]:
        layer.gate_bias = block.gate.e_score_correction_bias.detach().float().clone()
    return layer


def _check(block: nn.Module, made: nn.Module, layer: Any) -> None:
    """The same numbers on random tokens, up to rounding; one of 64 may choose another expert by that."""
    weight, draw = layer.gate, torch.Generator().manual_seed(0)
    tokens = torch.randn(1, 256, weight.shape[1], generator=draw).to(device=weight.device, dtype=layer.gate_up.dtype)
    with torch.no_grad(), _probe_bias(block, layer, draw):
        tokens = _steady(layer, tokens, draw)[:, :64]
        before, after = block(tokens), made(tokens)
    before, after = (t[0] if isinstance(t, tuple) else t for t in (before, after))
    error = (before.float() - after.float()).norm(dim=-1) / before.float().norm(dim=-1).clamp_min(1e-20)
    limit = 1e-4 if layer.gate_up.dtype == torch.float32 else 3e-2
    off = int((~(error <= limit)).sum())
    if off > 1:
        worst = error.max().item()
        raise _Refused(f"its output differs from the layer's for {off} of {tokens.shape[1]} tokens (relative error up to {worst:.2g})")


def _steady(layer: Any, tokens: Tensor, draw: torch.Generator) -> Tensor:
    """In bfloat16 some blocks round the gate's logits, and with many experts several of 64 tokens choose another one by
    that. The tokens whose choice survives an error of that size in the gate."""
    if layer.gate_up.dtype == torch.float32:
        return tokens
    gate, recorded, choices = layer.gate.data, layer.record_routing, []
    layer.record_routing = True
    try:
        for noise in (0, 2**-7, 2**-7, 2**-7):
            layer.gate.data = (gate * (1 + noise * torch.randn(gate.shape, generator=draw).to(gate))).to(gate.dtype)
            layer(tokens)
            choices.append(layer.experts.sort(-1).values)
    finally:
        layer.gate.data, layer.record_routing = gate, recorded
        layer.experts = layer.weights = None
    steady = torch.stack([(c == choices[0]).all(-1) for c in choices]).all(0)
    return tokens[:, steady] if steady.any() else tokens


@contextmanager
def _probe_bias(block: nn.Module, layer: Any, draw: torch.Generator) -> Iterator[None]:
    """A bias that is all zero, as before training, would hide what the old gate does with one: for the check it has
    values, the same in both."""
    bias = getattr(block.gate, "e_score_correction_bias", None)
    if bias is None or layer.gate_bias is None or bool(bias.any()):
        yield
        return
    values = torch.rand(bias.shape, generator=draw) * 0.2
    try:
        bias.copy_(values)
        layer.gate_bias.copy_(bias)
        yield
    finally:
        bias.zero_()
        layer.gate_bias.zero_()


def replace(model: nn.Module, *, check: bool = True) -> Replaced:
    """Replaces the MoE blocks of a Hugging Face DeepSeek, DeepSeek-V2, DeepSeek-V3 or Qwen-MoE model, in place, with the
    same weights. Blocks whose gate the layer does not have stay, and the result says why. `check` compares each new block
    with the old one on random tokens first. Where the gate of the old block attached a balance loss to its output in
    training, the new one does too."""
    report = Replaced()
    for name, block in list(model.named_modules()):
        if not (hasattr(block, "experts") and (hasattr(block, "gate") or hasattr(block, "router"))):
            continue
        if getattr(block, "layer", None) is not None or type(block).__name__ == "MoeLayer":
            continue
        training = block.training
        try:
            if not hasattr(block, "gate") or not name:
                raise _Refused(f"{type(block).__name__} is not a block that is known")
            block.eval()
            layer = _build(block)
            made: nn.Module = layer
            gated = getattr(block, "shared_expert_gate", None) is not None
            returns_logits = _returns_logits(block, layer)
            if gated or returns_logits:
                made = MoeBlock(layer, block, returns_logits)
            if check:
                _check(block, made, layer)
        except _Refused as reason:
            block.train(training)
            report.kept[name or "(the model itself)"] = str(reason)
            continue
        made.train(training)
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, made)
        report.replaced.append(name)
    return report


def _returns_logits(block: nn.Module, layer: Any) -> bool:
    if not type(block).__name__.startswith("Qwen"):
        return False
    probe = torch.zeros(1, 1, layer.gate.shape[1], device=layer.gate.device, dtype=layer.gate_up.dtype)
    with torch.no_grad():
        return isinstance(block(probe), tuple)
