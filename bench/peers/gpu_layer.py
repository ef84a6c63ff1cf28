#!/usr/bin/env python3
"""One DeepSeekMoE layer on a GPU in PyTorch, beside `dsmoe bench layer --device cuda`.

  gpu_layer.py --dsmoe build/cuda/bin/dsmoe [--backward] [--skew] [--tokens 1,8,...]   runs both, prints one table
  gpu_layer.py --ours ours.json                                                        ours from dsmoe ... --json

Peers: `loop`, one product after the other for each expert, as the models' own Python code does it; `grouped`, tokens sorted by
expert and torch's grouped_mm. The weights and tokens are those of dsmoe, number by number (Philox, cli/bench_layer_data.cpp),
and before anything is timed both peers must agree with each other and with the outputs in dsmoe's JSON. bf16. Times are
medians; `dsmoe f32` adds to f32 gradients instead of overwriting bf16 ones; CUDA graphs where the peer allows them (`loop` asks the host how many tokens each expert has, so it does not); several
copies of the weights are used in turn, so that none is still in the cache.
"""
import argparse
import json
import statistics
import subprocess
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit("gpu_layer.py: PyTorch is missing (import torch failed); install a CUDA build of it to run the peers")

COPIES = 4
SKEW_EMPTY = 8
INPUT_STREAM, GRAD_STREAM, CHECK_STREAM = 1_000_005, 1_000_006, 1_000_777  # cli/bench_layer.h
ALPHA = 0.001  # of the balance loss in training


def uniform(shape, scale, stream, dtype=torch.bfloat16):
    """uniform() of cli/bench_layer_data.cpp: Philox4x32-10, seed 1, word i of the stream."""
    n = 1
    for d in shape:
        n *= d
    out = torch.empty(n, dtype=dtype, device="cuda")
    step = 1 << 26
    for begin in range(0, n, step):
        end = min(n, begin + step)
        index = torch.arange(begin // 4, (end + 3) // 4, dtype=torch.int64, device="cuda")
        low = 0xFFFFFFFF
        c = [index & low, index >> 32, torch.full_like(index, stream & low), torch.full_like(index, stream >> 32)]
        k0, k1 = 1, 0
        for _ in range(10):
            p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57  # 64 bits; the sign bit is a bit like the others
            c = [(p1 >> 32 & low) ^ c[1] ^ k0, p1 & low, (p0 >> 32 & low) ^ c[3] ^ k1, p0 & low]
            k0, k1 = k0 + 0x9E3779B9 & low, k1 + 0xBB67AE85 & low
        words = torch.stack(c, dim=1).flatten()[: end - begin]
        out[begin:end] = ((words.float() * 2.0**-31 - 1.0) * scale).to(dtype)
    return out.view(shape)


class Weights:
    """Routed experts stacked [E, 2F, D] and [E, D, F]; the shared ones as one MLP of width S * F."""

    def __init__(self, a):
        scale = float(torch.tensor(1.0) / torch.tensor(float(a.hidden_size)).sqrt())
        d, f, s = a.hidden_size, a.expert_size, a.shared
        self.gate = uniform((a.experts, d), scale, 1)
        self.bias = None
        if a.skew:
            self.bias = torch.zeros(a.experts, device="cuda")
            self.bias[-SKEW_EMPTY:] = -10
        self.gate_up = torch.empty(a.experts, 2 * f, d, dtype=torch.bfloat16, device="cuda")
        self.down = torch.empty(a.experts, d, f, dtype=torch.bfloat16, device="cuda")
        for e in range(a.experts):
            self.gate_up[e, :f] = uniform((f, d), scale, 2 + 3 * e)
            self.gate_up[e, f:] = uniform((f, d), scale, 3 + 3 * e)
            self.down[e] = uniform((d, f), scale, 4 + 3 * e)
        last = 2 + 3 * a.experts
        self.shared_gate_up = torch.cat([uniform((s * f, d), scale, last), uniform((s * f, d), scale, last + 1)]) if s else None
        self.shared_down = uniform((d, s * f), scale, last + 2) if s else None

    def copy(self):
        other = object.__new__(Weights)
        other.__dict__ = {k: None if v is None else v.clone() for k, v in self.__dict__.items()}
        return other

    def parameters(self):
        return [v for k, v in self.__dict__.items() if v is not None and k != "bias"]


def tokens_of(a, w, n, stream):
    x = uniform((n, a.hidden_size), 1.0, stream, torch.float32)
    if a.skew:
        toward = torch.where(torch.arange(n, device="cuda") < n * 3 // 10, 4.0, -4.0)
        x += toward[:, None] * w.gate[0].float()
    return x.bfloat16()


def route(a, w, x):
    scores = F.linear(x.float(), w.gate.float()).softmax(dim=-1)
    ids = (scores if w.bias is None else scores.detach() + w.bias).topk(a.top_k, dim=-1)[1]
    return scores, ids, scores.gather(1, ids)


def balance_loss(a, scores, ids):
    count = torch.zeros(a.experts, device="cuda").scatter_add_(0, ids.flatten(), torch.ones(ids.numel(), device="cuda"))
    return ALPHA * (count * (a.experts / ids.numel()) * scores.mean(0)).sum()


def swiglu(h):
    gate, up = h.chunk(2, dim=-1)
    return F.silu(gate) * up


def mlp(x, gate_up, down):
    return F.linear(swiglu(F.linear(x, gate_up)), down)


def shared(w, x):
    return mlp(x, w.shared_gate_up, w.shared_down) if w.shared_down is not None else 0


def loop(a, w, x):
    """Expert after expert; the host learns the counts, so no graph can hold it."""
    scores, ids, weights = route(a, w, x)
    order = ids.flatten().argsort(stable=True)
    counts = torch.bincount(ids.flatten(), minlength=a.experts).tolist()
    token = order // a.top_k
    rows = x[token].split(counts)
    out = [mlp(r, w.gate_up[e], w.down[e]) for e, r in enumerate(rows) if len(r)]
    y = torch.zeros_like(x, dtype=torch.float32)
    y = y.index_add(0, token, torch.cat(out).float() * weights.flatten()[order, None])
    return (y + shared(w, x)).to(x.dtype), scores, ids


def loop_training(a, w, x):
    """In training that code repeats the tokens and masks them for every expert."""
    scores, ids, weights = route(a, w, x)
    flat = ids.flatten()
    repeated = x.repeat_interleave(a.top_k, dim=0)
    y = torch.empty_like(repeated)
    for e in range(a.experts):
        y[flat == e] = mlp(repeated[flat == e], w.gate_up[e], w.down[e])
    y = (y.view(len(x), a.top_k, -1) * weights[..., None].to(x.dtype)).sum(1)
    return y + shared(w, x), scores, ids


grouped_mm = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


def grouped(a, w, x):
    scores, ids, weights = route(a, w, x)
    flat = ids.flatten()
    order = flat.argsort(stable=True)
    counts = torch.zeros(a.experts, dtype=torch.int32, device="cuda").scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
    ends = counts.cumsum(0, dtype=torch.int32)
    rows = x[order // a.top_k]
    h = swiglu(grouped_mm(rows, w.gate_up.transpose(1, 2), offs=ends))
    out = grouped_mm(h, w.down.transpose(1, 2), offs=ends)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device="cuda")
    y = (out[back].view(len(x), a.top_k, -1) * weights[..., None].to(x.dtype)).sum(1)
    return y + shared(w, x), scores, ids


def median_us(run, repeat, group, calls):
    """As dsmoe measures: after a pause, since a chip under load lowers its clock, and 20 ms that are not timed."""
    time.sleep(0.2)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times, started = [], None
    while len(times) < repeat:
        warm = started is not None and time.monotonic() - started >= 0.02
        started = started or time.monotonic()
        begin.record()
        for _ in range(group):
            run()
        end.record()
        end.synchronize()
        if warm:
            times.append(begin.elapsed_time(end) * 1e3 / group / calls)
    return statistics.median(times)


def captured(run):
    """run() as a graph, or run itself when it cannot be captured."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
        run()
    torch.cuda.synchronize()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return graph.replay, "graph"
    except Exception as error:  # whatever the peer does that a graph cannot hold
        torch.cuda.synchronize()
        print(f"  (no CUDA graph: {str(error).splitlines()[0]})", file=sys.stderr)
        return run, "no graph"


def measure(a, peer, copies, tokens, backward):
    x = tokens_of(a, copies[0], tokens, INPUT_STREAM)
    if not backward:

        def run():
            with torch.no_grad():
                for w in copies:
                    peer["forward"](a, w, x)
    else:
        x.requires_grad_()
        dy = uniform((tokens, a.hidden_size), 1.0, GRAD_STREAM)

        def run():
            for w in copies:
                y, scores, ids = peer["training"](a, w, x)
                torch.autograd.grad([y, balance_loss(a, scores, ids)], [x, *w.parameters()],
                                    [dy, torch.ones((), device="cuda")])
    for w in copies:
        for p in w.parameters():
            p.requires_grad_(backward)
    torch.cuda.empty_cache()
    go, how = captured(run) if peer["graph"] else (run, "no graph")
    us = median_us(go, a.repeat, 1 if tokens >= 4096 else 2, len(copies))
    return {"us": us, "how": how}


def floors():
    """The same two rates that dsmoe measures."""
    n = 8192
    m, k = uniform((n, n), 1.0, 1), uniform((n, n), 1.0, 2)
    flops = 2 * n**3 / median_us(lambda: m @ k.T, 5, 2, 1) * 1e6
    source = torch.full((1 << 31,), 0x5A, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return flops, 2 * source.numel() / median_us(lambda: target.copy_(source), 5, 4, 1) * 1e6


def work(a, ids, tokens, backward):
    matrix = 3 * a.hidden_size * a.expert_size
    used = a.shared + int(ids.unique().numel())
    return (3 if backward else 1) * 2 * tokens * ((a.shared + a.top_k) * matrix + a.experts * a.hidden_size), \
        used * matrix * 2 * (3 if backward else 1)


def check(a, peers, w, ours):
    x = tokens_of(a, w, 2, CHECK_STREAM)
    outputs = {name: p["forward"](a, w, x)[0].float() for name, p in peers.items()}
    outputs |= {name + ", training": p["training"](a, w, x)[0].float() for name, p in peers.items()}
    want = next(iter(outputs.values()))
    for name, y in outputs.items():
        error = float((y - want).norm() / want.norm())
        if not error < 3e-2:
            sys.exit(f"gpu_layer.py: {name} is off from the other peers by {error:.2g}; no speed is reported")
    if ours and ours.get("sample_output"):
        sample = torch.tensor(ours["sample_output"], device="cuda")
        error = float((want.flatten()[: len(sample)] - sample).norm() / sample.norm())
        if not error < 3e-2:
            sys.exit(f"gpu_layer.py: dsmoe's output is off from the peers' by {error:.2g}: not the same layer; no speed is reported")
        print(f"Same layer: dsmoe's outputs are off from the peers' by {error:.1e}")


def our_results(a):
    if a.ours:
        with open(a.ours) as file:
            ours = json.load(file)
    elif a.dsmoe:
        command = [a.dsmoe, "bench", "layer", "--device", "cuda", "--json", "--dtype", "bf16", "--repeat", str(a.repeat),
                   "--tokens", ",".join(map(str, a.tokens)), "--hidden-size", str(a.hidden_size), "--expert-size",
                   str(a.expert_size), "--experts", str(a.experts), "--top-k", str(a.top_k), "--shared", str(a.shared)]
        command += ["--backward", "--grad-dtype", "bf16,f32"] * a.backward + ["--skew"] * a.skew
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"gpu_layer.py: {' '.join(command)} failed: {done.stderr.strip()}")
        ours = json.loads(done.stdout)
    else:
        return None
    for key, value in {"hidden_size": a.hidden_size, "expert_size": a.expert_size, "routed_experts": a.experts,
                       "experts_per_token": a.top_k, "shared_experts": a.shared, "dtype": "bf16", "skew": a.skew}.items():
        if ours[key] != value:
            sys.exit(f"gpu_layer.py: dsmoe's results are for {key} {ours[key]}, not {value}")
    return ours


def print_table(header, rows):
    rows = [header, *rows]
    widths = [max(len(r[i]) for r in rows) for i in range(len(header))]
    for i, r in enumerate(rows):
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(r, widths)))
        if i == 0:
            print("  " + "-" * (sum(widths) + 2 * len(widths) - 2))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dsmoe", help="the program; it runs first, in a process of its own")
    parser.add_argument("--ours", help="a file with the output of dsmoe bench layer --device cuda --json")
    parser.add_argument("--tokens", default="1,8,64,256,1024,4096,16384", type=lambda s: [int(t) for t in s.split(",")])
    for name, value in {"hidden-size": 2048, "expert-size": 1408, "experts": 64, "top-k": 6, "shared": 2, "repeat": 5}.items():
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--backward", action="store_true", help="also forward and backward together")
    parser.add_argument("--skew", action="store_true", help="one expert with 30%% of the tokens, eight with none")
    a = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(f"gpu_layer.py: no GPU: PyTorch {torch.__version__} finds no CUDA device")

    ours = our_results(a)
    peers = {"loop": {"forward": loop, "training": loop_training, "graph": False}}
    if grouped_mm:
        peers["grouped"] = {"forward": grouped, "training": grouped, "graph": True}
    else:
        print(f"gpu_layer.py: PyTorch {torch.__version__} has no grouped_mm; only the loop runs", file=sys.stderr)
    copies = [Weights(a)]
    copies += [copies[0].copy() for _ in range(COPIES - 1)]
    check(a, peers, copies[0], ours)
    flops, bandwidth = floors()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; D {a.hidden_size}, F {a.expert_size}, E {a.experts}, "
          f"K {a.top_k}, S {a.shared}, bf16{', skewed routing' if a.skew else ''}\n"
          f"bf16 matrix product {flops * 1e-12:.0f} TFLOP/s, copy {bandwidth * 1e-12:.2f} TB/s\n")

    rows, beside = [], []
    for backward in [False, True] if a.backward else [False]:
        for tokens in a.tokens:
            with torch.no_grad():
                ids = route(a, copies[0], tokens_of(a, copies[0], tokens, INPUT_STREAM))[1]
            operations, weight_bytes = work(a, ids, tokens, backward)
            floor = max(operations / flops, weight_bytes / bandwidth) * 1e6
            title = "forward+backward" if backward else "forward"
            found = [r for r in (ours or {}).get("results", []) if r["tokens"] == tokens and r["pass"] == title]
            # torch makes new gradients in bf16, so dsmoe's bf16 ones, overwritten, are the like of them.
            times = {"dsmoe": r["seconds"] * 1e6 for r in found if r.get("gradients") != "f32"}
            times |= {"dsmoe f32": r["seconds"] * 1e6 for r in found if r.get("gradients") == "f32"}
            hows = {"dsmoe": "graph", "dsmoe f32": "graph"}
            for name, peer in peers.items():
                result = measure(a, peer, copies[:2] if tokens >= 4096 else copies, tokens, backward)
                times[name], hows[name] = result["us"], result["how"]
            for name, us in times.items():
                rows.append([name, str(tokens), title, hows[name], f"{us:.1f}", f"{operations / us * 1e-6:.1f}",
                             f"{weight_bytes / us * 1e-6:.2f}", f"{floor:.1f}", f"{100 * floor / us:.0f}%"])
            best = min(us for name, us in times.items() if not name.startswith("dsmoe"))
            beside.append([str(tokens), title, f"{floor:.1f}", *(f"{times[n]:.1f}" if n in times else "" for n in ["dsmoe", "dsmoe f32", *peers]),
                           f"{best / times['dsmoe']:.2f}x" if "dsmoe" in times else ""])
    print_table(["who", "tokens", "pass", "how", "us", "TFLOP/s", "TB/s", "bound us", "of bound"], rows)
    print("\nSide by side, us:\n")
    print_table(["tokens", "pass", "bound", "dsmoe", "dsmoe f32", *peers, "best peer / dsmoe"], beside)


if __name__ == "__main__":
    main()
