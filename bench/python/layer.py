"""The layer inside PyTorch: what a call costs, and forward + backward beside PyTorch's own means in the same process.

    python bench/python/layer.py [--device cpu|cuda] [--tokens 1,512] [--dtype float32|bfloat16] [--threads N]

On the CPU, torch runs each expert's tokens in a loop (grouped by hand); on a GPU, torch's grouped_mm where this torch has it.
Times are the median of several runs; the two sides take turns. The cost of a call is what a layer of almost no work takes
from Python, less what it takes from C++.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch.nn import functional

from dsmoe import _core
from dsmoe import _torch_ops as ops
from dsmoe.torch import MoeLayer


class ByHand(torch.nn.Module):
    """The same layer with torch's matrix products: tokens sorted by expert, one product per expert or one grouped product."""

    def __init__(self, layer: MoeLayer, chosen: int) -> None:
        super().__init__()
        self.gate, self.chosen = layer.gate, chosen
        self.shared, self.routed = layer.shared_experts, layer.routed_experts
        self.gate_up, self.down = layer.gate_up, layer.down
        self.grouped = getattr(torch, "_grouped_mm", None) if self.gate.is_cuda else None

    def experts(self, u: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        up, down = self.gate_up[self.shared :].flatten(1, 2), self.down[self.shared :]
        if self.grouped is not None:
            ends = counts.cumsum(0).to(torch.int32)
            g, v = self.grouped(u, up.transpose(1, 2), offs=ends).chunk(2, -1)
            return self.grouped(functional.silu(g) * v, down.transpose(1, 2), offs=ends)
        out = []
        for e, rows in enumerate(u.split(counts.tolist())):
            g, v = functional.linear(rows, up[e]).chunk(2, -1)
            out.append(functional.linear(functional.silu(g) * v, down[e]))
        return torch.cat(out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = functional.linear(x, self.gate).float().softmax(-1)
        weights, index = scores.topk(self.chosen, -1)
        order = index.flatten().argsort(stable=True)
        counts = index.flatten().bincount(minlength=self.routed)
        rows = self.experts(x[order // self.chosen], counts) * weights.flatten()[order, None].to(x.dtype)
        y = torch.zeros_like(x).index_add(0, order // self.chosen, rows)
        for s in range(self.shared):
            g, v = functional.linear(x, self.gate_up[s].flatten(0, 1)).chunk(2, -1)
            y = y + functional.linear(functional.silu(g) * v, self.down[s])
        return y


def median_times(calls: dict[str, object], device: str, repeat: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeat + 1):
        for name, call in calls.items():
            began = time.perf_counter()
            call()  # type: ignore[operator]
            if device == "cuda":
                torch.cuda.synchronize()
            if turn > 0:
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(t) for name, t in times.items()}


def call_cost(threads: int) -> tuple[float, float]:
    """Microseconds of one token through a layer of almost no work, from Python and from C++, in turns; the least of each."""
    layer, x = MoeLayer(64, 32, 8, 2, 1), torch.randn(1, 64)
    weights = [w.detach() for w in (layer.gate, layer.gate_up, layer.down)]
    best = [float("inf"), float("inf")]
    with torch.no_grad():
        for _ in range(20):
            began = time.perf_counter()
            for _ in range(500):
                layer(x)
            best[0] = min(best[0], (time.perf_counter() - began) / 500)
            best[1] = min(best[1], _core.time_forward(ops.config_of(layer.config), x, *weights, 500, threads))
    return best[0] * 1e6, best[1] * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--tokens", default="")
    parser.add_argument("--dtype", default="")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="a layer of small sizes, to see that the benchmark runs")
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    tokens = [int(t) for t in (o.tokens or ("512" if o.device == "cpu" else "1,64,256,4096,16384")).split(",")]
    dtype = getattr(torch, o.dtype or ("float32" if o.device == "cpu" else "bfloat16"))
    d, f, e, k, s = (64, 32, 8, 2, 1) if o.small else (2048, 1408, 64, 6, 2)
    if o.device == "cpu":
        from_python, from_cpp = call_cost(o.threads)
        print(f"one call: {from_python:.1f} us from Python, {from_cpp:.1f} us from C++")
    layer = MoeLayer(d, f, e, k, s, dtype=dtype, device=o.device)
    by_hand = ByHand(layer, k)
    for n in tokens:
        x = torch.randn(n, d, device=o.device).to(dtype).requires_grad_()
        dy = torch.randn_like(x)
        with torch.no_grad():
            error = ((layer(x).float() - by_hand(x).float()).norm() / by_hand(x).float().norm()).item()
            forward = median_times({"dsmoe": lambda: layer(x), "torch": lambda: by_hand(x)}, o.device, o.repeat)
        both = median_times(
            {"dsmoe": lambda: layer(x).backward(dy), "torch": lambda: by_hand(x).backward(dy)}, o.device, o.repeat
        )
        print(
            f"{n:6} tokens, relative difference {error:.1e}: forward {forward['dsmoe'] * 1e3:.2f} ms, torch "
            f"{forward['torch'] * 1e3:.2f} ms ({forward['torch'] / forward['dsmoe']:.2f} times as fast); forward and backward "
            f"{both['dsmoe'] * 1e3:.2f} ms, torch {both['torch'] * 1e3:.2f} ms ({both['torch'] / both['dsmoe']:.2f})"
        )


if __name__ == "__main__":
    main()
