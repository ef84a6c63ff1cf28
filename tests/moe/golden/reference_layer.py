"""The DeepSeekMoE layer in PyTorch, written after the reference modules (gate, layer, auxiliary loss).

Plain functions over tensors, any float type. Beyond the reference: sigmoid scores, a selection bias,
group-limited choice, a scaling factor, and the paper's device-level balance loss.
"""
import dataclasses

import torch


@dataclasses.dataclass
class LayerConfig:
    hidden_size: int = 16
    expert_size: int = 8
    routed_experts: int = 8
    shared_experts: int = 2
    experts_per_token: int = 3
    norm_topk_prob: bool = False
    seq_aux: bool = True
    alpha: float = 0.25
    score: str = "softmax"
    routed_scaling_factor: float = 1.0
    groups: int = 1
    groups_per_token: int = 1
    group_score: str = "max"
    selection_bias: bool = False
    device_alpha: float = 0.0
    devices: int = 1


@dataclasses.dataclass
class Routing:
    idx: torch.Tensor  # [T, K], by descending selection score, the lower index first among equals
    weight: torch.Tensor  # [T, K]
    scores: torch.Tensor  # [T, E], without the selection bias
    selection: torch.Tensor  # [T, E], what the choice was made on; -inf in groups that lost
    groups: torch.Tensor  # [T, groups], group scores
    aux: dict  # name -> scalar


class AddAuxiliaryLoss(torch.autograd.Function):
    """The identity on y; in backward the loss receives gradient 1, whatever reaches y."""

    @staticmethod
    def forward(ctx, y, loss):
        ctx.like = loss
        return y.clone()

    @staticmethod
    def backward(ctx, dy):
        return dy, torch.ones_like(ctx.like)


def ranked(values):
    return torch.sort(values, dim=-1, descending=True, stable=True)


def choose(scores, bias, cfg, frozen):
    """The experts of every token, and what they were chosen by."""
    tokens, experts = scores.shape
    selection = scores.detach() + bias if cfg.selection_bias else scores.detach()
    by_group = selection.view(tokens, cfg.groups, experts // cfg.groups)
    group_scores = by_group.amax(-1) if cfg.group_score == "max" else ranked(by_group)[0][..., :2].sum(-1)
    if cfg.groups > 1:
        kept = ranked(group_scores)[1][:, : cfg.groups_per_token]
        mask = torch.zeros_like(group_scores, dtype=torch.bool).scatter_(1, kept, True)
        selection = by_group.masked_fill(~mask.unsqueeze(-1), -torch.inf).reshape(tokens, experts)
    idx = ranked(selection)[1][:, : cfg.experts_per_token] if frozen is None else frozen
    return idx, selection, group_scores


def balance_losses(scores, idx, batch, cfg):
    """Counts carry no gradient; the loss reaches the gate through the mean scores alone."""
    tokens, experts = scores.shape
    counts = torch.promote_types(scores.dtype, torch.float32)
    chosen = torch.zeros_like(scores, dtype=counts).scatter_(1, idx, 1.0)  # 1 where token t goes to expert i
    f = chosen.mean(0) * experts / cfg.experts_per_token
    p = scores.mean(0)
    aux = {}
    if cfg.alpha > 0 and cfg.seq_aux:
        per_sequence = chosen.view(batch, -1, experts).mean(1) * experts / cfg.experts_per_token
        aux["sequence"] = cfg.alpha * (per_sequence * scores.view(batch, -1, experts).mean(1)).sum(1).mean()
    elif cfg.alpha > 0:
        aux["batch"] = cfg.alpha * (f * p).sum()
    if cfg.device_alpha > 0:
        aux["device"] = cfg.device_alpha * (f.view(cfg.devices, -1).mean(1) * p.view(cfg.devices, -1).sum(1)).sum()
    return aux


def gate(x, weight, bias, cfg, frozen=None):
    """x [batch, seq, D] -> Routing. `frozen` is a choice to keep, for finite differences."""
    logits = x.reshape(-1, x.shape[-1]) @ weight.T
    scores = logits.softmax(-1) if cfg.score == "softmax" else logits.sigmoid()
    idx, selection, group_scores = choose(scores, bias, cfg, frozen)
    topk_weight = scores.gather(1, idx)
    if cfg.experts_per_token > 1 and cfg.norm_topk_prob:
        topk_weight = topk_weight / (topk_weight.sum(-1, keepdim=True) + 1e-20)
    topk_weight = topk_weight * cfg.routed_scaling_factor
    aux = balance_losses(scores, idx, x.shape[0], cfg)
    return Routing(idx, topk_weight, scores, selection, group_scores, aux)


def swiglu(x, gate_proj, up_proj, down_proj):
    return (torch.nn.functional.silu(x @ gate_proj.T) * (x @ up_proj.T)) @ down_proj.T


def train_forward(x, routing, experts, shared):
    """Every token K times, each copy through its expert, then the weighted sum over the copies."""
    k = routing.idx.shape[1]
    copies = x.reshape(-1, x.shape[-1]).repeat_interleave(k, dim=0)
    flat, y = routing.idx.reshape(-1), torch.zeros_like(copies)
    for i, expert in enumerate(experts):
        rows = (flat == i).nonzero().squeeze(1)
        y = y.index_copy(0, rows, swiglu(copies[rows], *expert))
    y = (y.view(*routing.weight.shape, -1) * routing.weight.unsqueeze(-1)).sum(1).view(x.shape)
    if routing.aux:  # the reference fails here when there is no loss
        y = AddAuxiliaryLoss.apply(y, sum(routing.aux.values()))
    return y if shared is None else y + swiglu(x, *shared)


@torch.no_grad()
def eval_forward(x, routing, experts, shared):
    """Experts in ascending order, each adding its weighted rows to an accumulator."""
    flat_x, k = x.reshape(-1, x.shape[-1]), routing.idx.shape[1]
    flat, weights, total = routing.idx.reshape(-1), routing.weight.reshape(-1, 1), torch.zeros_like(flat_x)
    for i, expert in enumerate(experts):
        rows = (flat == i).nonzero().squeeze(1)
        if len(rows):
            total.index_add_(0, rows // k, swiglu(flat_x[rows // k], *expert) * weights[rows])
    y = total.view(x.shape)
    return y if shared is None else y + swiglu(x, *shared)


def smallest_gap(routing, cfg):
    """Least relative distance between neighbours in the ranking that decided the choice and its order."""
    gaps = [torch.tensor(torch.inf, dtype=routing.scores.dtype)]
    top = ranked(routing.selection)[0][:, : cfg.experts_per_token + 1]
    gaps.append(((top[:, :-1] - top[:, 1:]) / top[:, :-1].abs()).flatten())
    if cfg.groups > cfg.groups_per_token:
        best = ranked(routing.groups)[0]
        n = cfg.groups_per_token
        gaps.append((best[:, n - 1] - best[:, n]) / best[:, n - 1].abs())
    return float(torch.cat([gap.reshape(-1) for gap in gaps]).min())
