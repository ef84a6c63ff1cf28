"""The layer as functions on torch tensors: eagerly an autograd.Function, under torch.compile a custom op with shapes."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from typing import Any, Optional

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack, to_dlpack

from . import _core

os.register_at_fork(after_in_child=_core.after_fork)


def config_text(config: Mapping[str, Any]) -> str:
    """A config as a text: what an op can take as an argument, and the same in every process."""
    return json.dumps(dict(config), sort_keys=True)


@functools.lru_cache(maxsize=1024)
def config_of(text: str) -> _core.MoeConfig:
    return _core.MoeConfig(**json.loads(text))


# The address of torch's current stream of a device (its default stream is CUDA's, 0), and the current device. What Triton calls
# too, and a fifth of the time that torch.cuda's functions take.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream)
_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


@functools.lru_cache(maxsize=1024)
def has_balance_loss(text: str) -> bool:
    return any(value != 0 for name, value in json.loads(text).items() if name.endswith("_alpha"))


def _shared(t: Tensor | None) -> Any:
    return None if t is None else to_dlpack(t)


_taken = from_dlpack


def raw_forward(
    x: Tensor, gate: Tensor, bias: Tensor | None, gate_up: Tensor, down: Tensor, config: str, training: bool, routing: bool
) -> tuple[Any, ...]:
    """y, losses [4], experts, weights, and the pass for raw_backward: a tensor that owns what backward needs."""
    stream = 0
    if x.is_cuda:
        device = x.get_device()
        if device != _current_device():  # the library works on that one
            with torch.cuda.device(device):
                return raw_forward(x, gate, bias, gate_up, down, config, training, routing)
        stream = _raw_stream(device)
    y, losses, experts, weights, kept = _core.layer_forward(
        config_of(config),
        to_dlpack(x),
        to_dlpack(gate),
        _shared(bias),
        to_dlpack(gate_up),
        to_dlpack(down),
        training,
        routing,
        0,
        torch.get_num_threads(),
        stream,
    )
    return (
        _taken(y),
        _taken(losses) if training else None,
        _taken(experts) if routing else None,
        _taken(weights) if routing else None,
        _taken(kept) if training else None,
    )


def raw_backward(
    dy: Tensor,
    kept: Tensor,
    x: Tensor,
    gate: Tensor,
    bias: Tensor | None,
    gate_up: Tensor,
    down: Tensor,
    config: str,
    d_aux: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x and of the weights. d_aux, that of the balance losses' sum, is read where the layer runs."""
    stream = 0
    if x.is_cuda:
        device = x.get_device()
        if device != _current_device():
            with torch.cuda.device(device):
                return raw_backward(dy, kept, x, gate, bias, gate_up, down, config, d_aux)
        stream = _raw_stream(device)
    # Gradients have one dtype in the library: the weights', or float32 where these differ.
    weights = (gate, gate_up, down)
    one_dtype = gate.dtype == gate_up.dtype
    grads = [torch.empty_like(w) if one_dtype else torch.empty_like(w, dtype=torch.float32) for w in weights]
    dy = dy.contiguous()
    while True:
        dx = _core.layer_backward(
            config_of(config),
            to_dlpack(kept),
            to_dlpack(dy),
            to_dlpack(gate),
            _shared(bias),
            to_dlpack(gate_up),
            to_dlpack(down),
            *map(to_dlpack, grads),
            _shared(d_aux),
            torch.get_num_threads(),
            stream,
        )
        if dx is not None:
            return (_taken(dx), *(grads if one_dtype else (g.to(w.dtype) for g, w in zip(grads, weights))))
        # A second backward of one forward (retain_graph), or a copy of `kept`: compute it again, to the same bits.
        kept = raw_forward(x, gate, bias, gate_up, down, config, True, False)[-1]


class _Moe(torch.autograd.Function):
    """y, and the sum of the balance losses if there are any. What has no gradient goes into the list `besides`: every output of
    an autograd.Function costs microseconds."""

    @staticmethod
    def forward(ctx: Any, x, gate, bias, gate_up, down, config, routing, besides):  # type: ignore[no-untyped-def]
        y, losses, experts, weights, kept = raw_forward(x, gate, bias, gate_up, down, config, True, routing)
        ctx.save_for_backward(x, gate, bias, gate_up, down, kept)
        ctx.config = config
        ctx.set_materialize_grads(False)
        besides += (losses, experts, weights)
        return y, losses.sum().float() if has_balance_loss(config) else None

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy, d_aux):  # type: ignore[no-untyped-def]
        x, gate, bias, gate_up, down, kept = ctx.saved_tensors
        if dy is None and d_aux is None:
            return None, None, None, None, None, None, None, None
        if dy is None:
            dy = torch.zeros_like(x)
        dx, d_gate, d_gate_up, d_down = raw_backward(dy, kept, x, gate, bias, gate_up, down, ctx.config, d_aux)
        return dx, d_gate, None, d_gate_up, d_down, None, None, None


# Under torch.compile. Ops return tensors only, and always as many.
@torch.library.custom_op("dsmoe::moe_forward", mutates_args=())
def moe_forward(
    x: Tensor,
    gate: Tensor,
    bias: Optional[Tensor],
    gate_up: Tensor,
    down: Tensor,
    config: str,
    training: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    y, losses, experts, weights, kept = raw_forward(
        x.contiguous(), gate.contiguous(), bias, gate_up.contiguous(), down.contiguous(), config, training, True
    )
    if not training:
        losses = torch.zeros(4, dtype=torch.float64, device=x.device)
        kept = torch.zeros(1, dtype=torch.int64)
    return y, losses.sum().float(), losses, experts, weights, kept


@moe_forward.register_fake
def _(x, gate, bias, gate_up, down, config, training):  # type: ignore[no-untyped-def]
    tokens, chosen = x.numel() // x.shape[-1], json.loads(config)["experts_per_token"]
    return (
        torch.empty_like(x, memory_format=torch.contiguous_format),
        x.new_empty((), dtype=torch.float32),
        x.new_empty(4, dtype=torch.float64),
        x.new_empty((tokens, chosen), dtype=torch.int32),
        x.new_empty((tokens, chosen), dtype=torch.float32),
        torch.empty(1, dtype=torch.int64, device="cpu"),
    )


@torch.library.custom_op("dsmoe::moe_backward", mutates_args=())
def moe_backward(
    dy: Tensor,
    d_aux: Tensor,
    kept: Tensor,
    x: Tensor,
    gate: Tensor,
    bias: Optional[Tensor],
    gate_up: Tensor,
    down: Tensor,
    config: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, gate, gate_up, down = x.contiguous(), gate.contiguous(), gate_up.contiguous(), down.contiguous()
    return raw_backward(dy, kept, x, gate, bias, gate_up, down, config, d_aux)


@moe_backward.register_fake
def _(dy, d_aux, kept, x, gate, bias, gate_up, down, config):  # type: ignore[no-untyped-def]
    return tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, gate, gate_up, down))


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, gate, bias, gate_up, down, config, training = inputs
    ctx.save_for_backward(x, gate, bias, gate_up, down, output[5])
    ctx.config = config


def _op_backward(ctx: Any, dy, d_aux, *_):  # type: ignore[no-untyped-def]
    x, gate, bias, gate_up, down, kept = ctx.saved_tensors
    dy = torch.zeros_like(x) if dy is None else dy
    d_aux = x.new_zeros((), dtype=torch.float32) if d_aux is None else d_aux
    dx, d_gate, d_gate_up, d_down = moe_backward(dy, d_aux, kept, x, gate, bias, gate_up, down, ctx.config)
    return dx, d_gate, None, d_gate_up, d_down, None, None


moe_forward.register_autograd(_op_backward, setup_context=_setup)


def moe(
    x: Tensor, gate: Tensor, bias: Tensor | None, gate_up: Tensor, down: Tensor, config: str, training: bool, routing: bool
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """y, the sum of the balance losses (None: the layer has none), their parts, experts and weights."""
    if torch.compiler.is_compiling():
        return moe_forward(x, gate, bias, gate_up, down, config, training)[:5]
    if not (x.is_contiguous() and gate.is_contiguous() and gate_up.is_contiguous() and down.is_contiguous()):
        x, gate, gate_up, down = x.contiguous(), gate.contiguous(), gate_up.contiguous(), down.contiguous()
    if training:
        besides: list[Tensor | None] = []
        y, aux = _Moe.apply(x, gate, bias, gate_up, down, config, routing, besides)
        return y, aux, *besides  # type: ignore[return-value]
    y, _, experts, weights, _ = raw_forward(x, gate, bias, gate_up, down, config, False, routing)
    return y, None, None, experts, weights


class _Attach(torch.autograd.Function):
    """y, whose gradient takes along that of the loss: as if the loss had been added to whatever is minimised."""

    @staticmethod
    def forward(ctx: Any, y, loss):  # type: ignore[no-untyped-def]
        ctx.like = loss.dtype
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy):  # type: ignore[no-untyped-def]
        return dy, torch.ones((), dtype=ctx.like, device=dy.device)


attach = _Attach.apply
