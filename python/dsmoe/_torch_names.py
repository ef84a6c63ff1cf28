"""The layer's stacks under the names that Hugging Face checkpoints have, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Size, Tensor

_PARTS = ("gate_proj", "up_proj")


def from_stacks(stacks: Mapping[str, Tensor], shared: int) -> dict[str, Tensor]:
    """gate.weight, experts.{i}.gate_proj.weight, ..., shared_experts.gate_proj.weight. Those of routed experts are views."""
    gate_up, down = stacks["gate_up"], stacks["down"]
    out = {"gate.weight": stacks["gate"]}
    if "gate_bias" in stacks:
        out["gate.e_score_correction_bias"] = stacks["gate_bias"]
    for e in range(gate_up.shape[0] - shared):
        for i, part in enumerate(_PARTS):
            out[f"experts.{e}.{part}.weight"] = gate_up[shared + e, i]
        out[f"experts.{e}.down_proj.weight"] = down[shared + e]
    if shared > 0:  # one wide MLP: [S * F, D], and [D, S * F]
        for i, part in enumerate(_PARTS):
            out[f"shared_experts.{part}.weight"] = gate_up[:shared, i].flatten(0, 1)
        out["shared_experts.down_proj.weight"] = down[:shared].permute(1, 0, 2).flatten(1, 2)
    return out


def _places(name: str, shared: int, routed: int, width: int) -> Any:
    """Which parts of which stack a tensor of this name is: (stack, index, how to cut the tensor) each; None: not ours."""
    whole = {"gate.weight": "gate", "gate.e_score_correction_bias": "gate_bias"}
    if name in ("gate", "gate_up", "down", "gate_bias") or name in whole:
        return [(whole.get(name, name), ..., lambda t: t)]
    if name == "experts.gate_up_proj":
        return [("gate_up", slice(shared, None), lambda t: t.unflatten(1, (2, -1)))]
    if name == "experts.down_proj":
        return [("down", slice(shared, None), lambda t: t)]
    if match := re.fullmatch(r"experts\.(\d+)\.(gate_proj|up_proj|down_proj)\.weight", name):
        e, part = int(match[1]), match[2]
        if e >= routed:
            return None
        if part == "down_proj":
            return [("down", shared + e, lambda t: t)]
        return [("gate_up", (shared + e, _PARTS.index(part)), lambda t: t)]
    if match := re.fullmatch(r"shared_experts?\.(gate_proj|up_proj|down_proj)\.weight", name):
        if shared == 0:
            return None
        if match[1] == "down_proj":
            return [("down", slice(0, shared), lambda t: t.unflatten(1, (shared, width)).permute(1, 0, 2))]
        part = _PARTS.index(match[1])
        return [("gate_up", (slice(0, shared), part), lambda t: t.unflatten(0, (shared, width)))]
    return None


def to_stacks(
    given: Mapping[str, Tensor], shapes: Mapping[str, Size], shared: int
) -> tuple[dict[str, list[tuple[Any, Tensor]]], set[str], list[str], list[str]]:
    """What to copy where, for each stack; the names that were used; names that are missing; what is wrong with others."""
    experts, _, width, _ = shapes["gate_up"]
    routed = experts - shared
    found: dict[str, list[tuple[Any, Tensor]]] = {}
    used: set[str] = set()
    wrong: list[str] = []
    covered = {name: 0 for name in shapes}
    for name, tensor in given.items():
        for stack, place, cut in _places(name, shared, routed, width) or ():
            if stack not in shapes:
                continue
            used.add(name)
            try:
                value = cut(tensor)
            except (RuntimeError, IndexError) as error:
                wrong.append(f"{name}: a shape of {list(tensor.shape)} does not fit ({error})")
                continue
            expected = _shape_at(shapes[stack], place)
            if value.shape != expected:
                wrong.append(f"{name}: a shape of {list(tensor.shape)} does not fit, expected {list(expected)}")
                continue
            found.setdefault(stack, []).append((place, value))
            covered[stack] += value.numel()
    names = {"gate": "gate.weight", "gate_bias": "gate.e_score_correction_bias"}
    short = {"gate_up": "experts.*.gate_proj.weight and up_proj.weight", "down": "experts.*.down_proj.weight"}
    missing = [
        names.get(stack, short.get(stack, stack))
        for stack, shape in shapes.items()
        if covered[stack] < shape.numel() and not wrong
    ]
    return found, used, missing, wrong


def _shape_at(shape: Size, place: Any) -> Size:
    return torch.empty(1).expand(shape)[place].shape
