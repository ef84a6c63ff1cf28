"""The layer as a PyTorch module, and in place of the MoE blocks of Hugging Face models.

    import dsmoe.torch

    layer = dsmoe.torch.MoeLayer(hidden_size=512, expert_size=256, routed_experts=64, shared_experts=2, experts_per_token=6,
                                 seq_balance_alpha=0.001)
    y = layer(x)                               # [tokens, 512] or [batch, sequence, 512]
    loss = criterion(y) + layer.aux_loss       # the balance losses, with their gradient

Tensors are shared with the library, not copied. On CUDA, work is launched on torch's current stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from . import _core
from . import _torch_ops as ops
from ._torch_names import from_stacks, to_stacks
from ._torch_replace import Replaced, replace

__all__ = ["MoeLayer", "Replaced", "aux_loss", "moe_layers", "replace", "synchronize"]


class MoeLayer(nn.Module):
    """h = sum of the shared experts' FFN(x) + sum of the chosen experts' weight * FFN(x), without the residual connection.

    Parameters: gate [E, D]; gate_up [S + E, 2, F, D] and down [S + E, D, F], shared experts first. float32 or bfloat16.
    `config` takes the fields of the library's MoeConfig: score ("softmax", "sigmoid"), norm_topk_prob,
    routed_scaling_factor, selection_bias, groups, groups_per_token, group_score ("max", "top2_sum"), seq_balance_alpha,
    batch_balance_alpha, device_balance_alpha, devices, router_z_alpha, layer_index.

    After a call in training, `aux_loss` is the sum of the balance losses as a tensor to add to the loss, and `losses` are
    their four parts (sequence, batch, device, router z) without gradients. With attach_aux_loss their gradient comes along
    with y's instead, as in the reference implementation, and there is nothing to add. With record_routing, `experts` and
    `weights` [T, K] are what the last call chose.
    """

    def __init__(
        self,
        hidden_size: int,
        expert_size: int,
        routed_experts: int,
        experts_per_token: int,
        shared_experts: int = 0,
        *,
        attach_aux_loss: bool = False,
        record_routing: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        **config: Any,
    ) -> None:
        super().__init__()
        sizes = dict(
            hidden_size=hidden_size,
            expert_size=expert_size,
            routed_experts=routed_experts,
            experts_per_token=experts_per_token,
            shared_experts=shared_experts,
        )
        self.config = ops.config_text({**sizes, **config})
        moe = ops.config_of(self.config)  # refuses what cannot be
        self.attach_aux_loss = attach_aux_loss
        self.record_routing = record_routing
        self.shared_experts, self.routed_experts = shared_experts, routed_experts
        made: dict[str, Any] = dict(dtype=dtype, device=device)
        experts = shared_experts + routed_experts
        self.gate = nn.Parameter(torch.empty(routed_experts, hidden_size, **made))
        self.gate_up = nn.Parameter(torch.empty(experts, 2, expert_size, hidden_size, **made))
        self.down = nn.Parameter(torch.empty(experts, hidden_size, expert_size, **made))
        bias = torch.zeros(routed_experts, dtype=torch.float32, device=device) if moe.selection_bias else None
        self.register_buffer("gate_bias", bias)
        self._aux: Tensor | None = None
        self.losses: Tensor | None = None
        self.experts: Tensor | None = None
        self.weights: Tensor | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the reference implementation does: the gate uniform in 1/sqrt(D), the rest normal with deviation 0.02."""
        bound = 1 / math.sqrt(self.gate.shape[1])
        nn.init.uniform_(self.gate, -bound, bound)
        nn.init.normal_(self.gate_up, std=0.02)
        nn.init.normal_(self.down, std=0.02)

    def extra_repr(self) -> str:
        return self.config

    def _apply(self, fn: Any, recurse: bool = True) -> MoeLayer:
        before = self.gate_bias
        super()._apply(fn, recurse)
        made = self.gate_bias
        if made is not None and made.dtype != torch.float32:
            # .bfloat16() means the weights: the bias keeps its values, and only moves.
            self.gate_bias = made.float() if before.is_meta or made.is_meta else before.to(made.device, torch.float32)
        self._aux = self.losses = self.experts = self.weights = None
        return self

    @property
    def aux_loss(self) -> Tensor | None:
        """The sum of the last call's balance losses, if it was one in training and the gradient did not go along with y's."""
        if self._aux is None and self.losses is not None and not self.attach_aux_loss:  # the layer has no such loss
            return self.losses.new_zeros((), dtype=torch.float32)
        return self._aux

    @aux_loss.setter
    def aux_loss(self, nothing: None) -> None:
        """None: the last call is forgotten, and its graph with it, which would live until the next one."""
        self._aux = self.losses = None

    # A copy has no last call: its tensors belong to a graph, which can be neither copied nor pickled.
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, **dict.fromkeys(("_aux", "losses", "experts", "weights"))}

    def forward(self, x: Tensor) -> Tensor:
        kind = x.device.type
        if not torch.is_autocast_enabled(kind):
            own = self._parameters  # nn.Module's way to an attribute costs a microsecond; wrappers may take parameters out
            if "down" in own and "gate_up" in own and "gate" in own:
                return self._run(x, own["gate"], own["gate_up"], own["down"])
            return self._run(x, self.gate, self.gate_up, self.down)
        # float16 is no dtype of the layer: there it computes in float32, and gives float16.
        asked = torch.get_autocast_dtype(kind)
        dtype = torch.bfloat16 if asked == torch.bfloat16 else torch.float32
        with torch.autocast(kind, enabled=False):
            return self._run(x.to(dtype), self.gate.to(dtype), self.gate_up.to(dtype), self.down.to(dtype)).to(asked)

    def _run(self, x: Tensor, gate: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        shape = x.shape
        if len(shape) > 3:
            x = x.reshape(-1, shape[-2], shape[-1])
        training = torch.is_grad_enabled() and (
            x.requires_grad or gate.requires_grad or gate_up.requires_grad or down.requires_grad
        )
        y, aux, losses, experts, weights = ops.moe(
            x, gate, self._buffers.get("gate_bias"), gate_up, down, self.config, training, self.record_routing
        )
        if aux is not None and self.attach_aux_loss:
            y, aux = ops.attach(y, aux), None
        if training:
            self._aux, self.losses = aux, losses
        elif self.losses is not None:
            self._aux = self.losses = None
        if self.record_routing:
            self.experts, self.weights = experts, weights
        return y if len(shape) <= 3 else y.reshape(shape)

    # state_dict() has the names and shapes that a Hugging Face checkpoint has for this block, so that either loads the
    # other's; load_state_dict() takes those, the fused names of transformers 5, and the parameters' own.
    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        values = {
            name: value if keep_vars else value.detach()
            for name, value in (("gate", self.gate), ("gate_up", self.gate_up), ("down", self.down))
        }
        if self.gate_bias is not None:
            values["gate_bias"] = self.gate_bias
        for name, value in from_stacks(values, self.shared_experts).items():
            destination[prefix + name] = value

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, missing: Any, unexpected: Any, errors: Any
    ) -> None:
        own = {k[len(prefix) :]: v for k, v in state_dict.items() if k.startswith(prefix)}
        shapes = {"gate": self.gate, "gate_up": self.gate_up, "down": self.down}
        if self.gate_bias is not None:
            shapes["gate_bias"] = self.gate_bias
        found, used, absent, wrong = to_stacks(own, {k: v.shape for k, v in shapes.items()}, self.shared_experts)
        missing.extend(prefix + name for name in absent)
        errors.extend(f"{prefix}{text}" for text in wrong)
        if strict:
            unexpected.extend(prefix + name for name in own if name not in used)
        with torch.no_grad():
            for name, parts in found.items():
                for place, value in parts:
                    shapes[name][place].copy_(value)


def moe_layers(model: nn.Module) -> Iterator[MoeLayer]:
    """The model's MoeLayers."""
    return (m for m in model.modules() if isinstance(m, MoeLayer))


def aux_loss(model: nn.Module) -> Tensor | float:
    """The sum of the balance losses of the model's last call, to add to the loss; 0.0 when there are none."""
    losses = [layer.aux_loss for layer in moe_layers(model) if layer.aux_loss is not None]
    return torch.stack(losses).sum() if losses else 0.0


def synchronize() -> None:
    """Waits for the GPUs. Raises the Error for what a kernel found wrong in its data, such as a NaN in a gate; on the CPU such
    an error is raised at once."""
    if torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)
    _core.synchronize()
