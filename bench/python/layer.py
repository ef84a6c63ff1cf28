"""The layer inside PyTorch: what a call costs, and forward + backward beside PyTorch's own means in the same process.

    python bench/python/layer.py [--device cpu|cuda] [--tokens 1,512] [--dtype float32|bfloat16] [--threads N]

On the CPU, torch runs each expert's tokens in a loop (grouped by hand); on a GPU, torch's grouped_mm, without anything that waits
for the GPU. Times are the median of several runs; the two sides take turns. On a GPU also as CUDA graphs, where the launches
themselves cost neither side anything. The cost of a call is what a layer of almost no work takes from Python, less what it takes
from C++.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import Parameter, ParameterList, functional

from dsmoe import _core
from dsmoe import _torch_ops as ops
from dsmoe.torch import MoeLayer


class ByHand(torch.nn.Module):
    """The same layer with torch's matrix products: tokens sorted by expert, one product per expert or one grouped product."""

    def __init__(self, layer: MoeLayer, chosen: int) -> None:
        super().__init__()
        self.chosen, self.routed, shared = chosen, layer.routed_experts, layer.shared_experts
        own = lambda t: Parameter(t.detach().clone(memory_format=torch.contiguous_format))  # noqa: E731
        self.gate, up, down = own(layer.gate), layer.gate_up[shared:].flatten(1, 2), layer.down[shared:]
        # The shared experts as one wide one.
        self.shared_up = own(layer.gate_up[:shared].transpose(0, 1).flatten(0, 2))
        self.shared_down = own(layer.down[:shared].permute(1, 0, 2).flatten(1, 2))
        self.grouped = getattr(functional, "grouped_mm", None) or getattr(torch, "_grouped_mm") if self.gate.is_cuda else None
        # Who takes expert after expert has them as parameters of their own: the gradient of a part of a stack is a whole stack.
        each = own if self.grouped else lambda t: ParameterList(map(own, t))
        self.up, self.down = each(up), each(down)

    def experts(self, u: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        if self.grouped is not None:
            ends = counts.cumsum(0, dtype=torch.int32)
            g, v = self.grouped(u, self.up.transpose(1, 2), offs=ends).chunk(2, -1)
            return self.grouped(functional.silu(g) * v, self.down.transpose(1, 2), offs=ends)
        out = []
        for e, rows in enumerate(u.split(counts.tolist())):
            if len(rows):
                out.append(mlp(rows, self.up[e], self.down[e]))
        return torch.cat(out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, index = functional.linear(x, self.gate).float().softmax(-1).topk(self.chosen, -1)
        flat = index.flatten()
        order = flat.argsort(stable=True)
        counts = torch.zeros(self.routed, dtype=torch.int32, device=x.device)
        counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
        rows = self.experts(x[order // self.chosen], counts)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=x.device)
        y = (rows[back].view(len(x), self.chosen, -1) * weights[..., None].to(x.dtype)).sum(1)
        return y + mlp(x, self.shared_up, self.shared_down)


def mlp(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    g, v = functional.linear(x, up).chunk(2, -1)
    return functional.linear(functional.silu(g) * v, down)


def seconds(call: Callable[[], object], calls: int, cuda: bool) -> float:
    """Of one call, of several in a row."""
    began = time.perf_counter()
    for _ in range(calls):
        call()
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / calls


def medians(ours: Callable[[], object], theirs: Callable[[], object], cuda: bool, repeat: int) -> tuple[float, float]:
    """Milliseconds of one call of each; the sides take turns. On a GPU, of as many calls as take about 10 ms."""
    sides, calls = (ours, theirs), []
    for side in sides:
        seconds(side, 3 if cuda else 1, cuda)
        calls.append(max(1, min(200, round(0.01 / seconds(side, 2, cuda)))) if cuda else 1)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeat):
        for side, n, out in zip(sides, calls, times):
            out.append(seconds(side, n, cuda))
    return statistics.median(times[0]) * 1e3, statistics.median(times[1]) * 1e3


def graphed(call: Callable[[], object]) -> Callable[[], object]:
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        kept = call()
    return lambda: (graph.replay(), kept)


class Nothing(torch.autograd.Function):
    """What torch itself takes for a function with the tensors of the layer: it only makes them."""

    @staticmethod
    def forward(ctx, x, *weights):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, *weights)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        return tuple(torch.empty_like(t) for t in ctx.saved_tensors)


def call_cost(device: str, threads: int) -> None:
    """Microseconds of one token through a layer of almost no work, in turns; the least of many turns. On a GPU, of launching it."""
    cuda = device == "cuda"
    dtype = torch.bfloat16 if cuda else torch.float32
    layer = MoeLayer(128, 64, 8, 2, 1, dtype=dtype, device=device)
    x, dy = torch.randn(2, 1, 128, device=device).to(dtype)
    weights = list(layer.parameters())
    stream = torch.cuda.current_stream().cuda_stream if cuda else 0
    calls = 30  # fewer launches than a GPU's queue takes

    def in_python(call: Callable[[], object]) -> Callable[[], float]:
        return lambda: seconds(call, calls, False)

    def in_cpp(dy: torch.Tensor | None) -> Callable[[], float]:
        own, config = [w.detach() for w in weights], ops.config_of(layer.config)
        return lambda: _core.time_calls(config, x, dy, *own, calls, threads, stream)

    def forward() -> None:
        with torch.no_grad():
            layer(x)

    sides = {
        "forward from Python": in_python(forward),
        "from C++": in_cpp(None),
        "forward and backward from Python": in_python(lambda: torch.autograd.grad(layer(x), weights, dy)),
        "from C++ ": in_cpp(dy),
        "an autograd.Function that does nothing": in_python(lambda: torch.autograd.grad(Nothing.apply(x, *weights), weights, dy)),
    }
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(100):
        for name, side in sides.items():
            best[name] = min(best[name], side())
            if cuda:
                torch.cuda.synchronize()
    print("one call: " + ", ".join(f"{name.strip()} {t * 1e6:.1f} us" for name, t in best.items()), flush=True)


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
    cuda = o.device == "cuda"
    tokens = [int(t) for t in (o.tokens or ("1,8,64,256,4096,16384" if cuda else "512")).split(",")]
    dtype = getattr(torch, o.dtype or ("bfloat16" if cuda else "float32"))
    d, f, e, k, s = (64, 32, 8, 2, 1) if o.small else (2048, 1408, 64, 6, 2)
    on = torch.cuda.get_device_name() if cuda else f"{o.threads} threads"
    print(f"torch {torch.__version__}, {on}: D {d}, F {f}, E {e}, K {k}, S {s}, {dtype}. Milliseconds of dsmoe, torch, and their ratio")
    call_cost(o.device, o.threads)
    layer = MoeLayer(d, f, e, k, s, dtype=dtype, device=o.device)
    by_hand = ByHand(layer, k)
    for n in tokens:
        x = torch.randn(n, d, device=o.device).to(dtype).requires_grad_()
        dy = torch.randn_like(x)

        def forward(side: torch.nn.Module) -> Callable[[], object]:
            def call() -> object:
                with torch.no_grad():
                    return side(x)

            return call

        def both(side: torch.nn.Module) -> Callable[[], object]:
            wanted = [x, *side.parameters()]
            return lambda: torch.autograd.grad(side(x), wanted, dy, allow_unused=True)

        with torch.no_grad():
            y = by_hand(x).float()
            error = ((layer(x).float() - y).norm() / y.norm()).item()
        line = f"{n:6} tokens, relative difference {error:.1e}"
        for name, work in (("forward", forward), ("forward and backward", both)):
            ways = [("", lambda call: call), (" as a graph", graphed)] if cuda else [("", lambda call: call)]
            for way, made in ways:
                a, b = medians(made(work(layer)), made(work(by_hand)), cuda, o.repeat)
                line += f"; {name}{way} {a:.3f}, {b:.3f}, {b / a:.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
