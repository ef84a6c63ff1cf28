#!/usr/bin/env python3
"""Training steps of a small DeepSeekMoE model on a CPU in PyTorch, beside `dsmoe bench train`.

  train_step.py --dsmoe build/release/bin/dsmoe     runs both in turn, prints one table
  train_step.py                                     PyTorch alone

Peers: `loop`, the training path of the models' own Python code (every token repeated K times, one product after the other
for each expert over a mask); `grouped`, tokens sorted by expert once, each expert's rows a slice, sums by index_add. Both
are the same model as `dsmoe bench train` measures: D 256, 4 MoE layers, E 32, K 6, S 2, F 128, V 512, 16 sequences of 128,
f32, forward + backward + AdamW with clipping. Before anything is timed the peers must agree with each other.
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
    sys.exit("train_step.py: PyTorch is missing (import torch failed); on Debian: apt-get install python3-torch")

D, LAYERS, E, K, S, WIDTH, V, HEADS, SEQ, BATCH = 256, 4, 32, 6, 2, 128, 512, 4, 128, 16
ALPHA = 0.001


class Mlp(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate = torch.nn.Linear(D, width, bias=False)
        self.up = torch.nn.Linear(D, width, bias=False)
        self.down = torch.nn.Linear(width, D, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Moe(torch.nn.Module):
    def __init__(self, grouped):
        super().__init__()
        self.router = torch.nn.Parameter(torch.empty(E, D).uniform_(-(D**-0.5), D**-0.5))
        self.experts = torch.nn.ModuleList(Mlp(WIDTH) for _ in range(E))
        self.shared = Mlp(S * WIDTH)
        self.grouped = grouped

    def forward(self, x):
        scores = (x @ self.router.T).softmax(-1)
        weight, index = scores.topk(K, -1)
        share = torch.zeros(BATCH, E).scatter_add_(1, index.view(BATCH, -1), torch.ones(BATCH, SEQ * K)) * (E / (SEQ * K))
        aux = ALPHA * (share * scores.view(BATCH, SEQ, E).mean(1)).sum(1).mean()
        y = self.by_expert(x, weight, index) if self.grouped else self.by_mask(x, weight, index)
        return y + self.shared(x), aux

    def by_mask(self, x, weight, index):
        repeated, flat = x.repeat_interleave(K, 0), index.flatten()
        y = torch.empty_like(repeated)
        for e, expert in enumerate(self.experts):
            chosen = flat == e
            y[chosen] = expert(repeated[chosen])
        return (y.view(-1, K, D) * weight.unsqueeze(-1)).sum(1)

    def by_expert(self, x, weight, index):
        order = index.flatten().argsort(stable=True)
        tokens = order // K
        counts = torch.bincount(index.flatten(), minlength=E).tolist()
        parts = [expert(part) for expert, part in zip(self.experts, x[tokens].split(counts)) if len(part)]
        return torch.zeros_like(x).index_add(0, tokens, torch.cat(parts) * weight.flatten()[order].unsqueeze(1))


class Block(torch.nn.Module):
    def __init__(self, grouped):
        super().__init__()
        self.norm1 = torch.nn.Parameter(torch.ones(D))
        self.norm2 = torch.nn.Parameter(torch.ones(D))
        self.q, self.k, self.v, self.o = (torch.nn.Linear(D, D, bias=False) for _ in range(4))
        self.moe = Moe(grouped)

    def forward(self, x, cos, sin):
        x = x + self.attention(norm(x, self.norm1), cos, sin)
        y, aux = self.moe(norm(x, self.norm2))
        return x + y, aux

    def attention(self, h, cos, sin):
        q, k, v = (linear(h).view(BATCH, SEQ, HEADS, D // HEADS).transpose(1, 2) for linear in (self.q, self.k, self.v))
        q, k = (t * cos + torch.cat((-t[..., D // HEADS // 2 :], t[..., : D // HEADS // 2]), -1) * sin for t in (q, k))
        scores = q @ k.transpose(-1, -2) * (D // HEADS) ** -0.5
        mask = torch.full((SEQ, SEQ), float("-inf")).triu(1)
        return self.o(((scores + mask).softmax(-1) @ v).transpose(1, 2).reshape(-1, D))


def norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


class Model(torch.nn.Module):
    def __init__(self, grouped):
        super().__init__()
        self.embedding = torch.nn.Embedding(V, D)
        self.blocks = torch.nn.ModuleList(Block(grouped) for _ in range(LAYERS))
        self.norm = torch.nn.Parameter(torch.ones(D))
        self.head = torch.nn.Linear(D, V, bias=False)
        half = D // HEADS // 2
        angle = torch.arange(SEQ).unsqueeze(1) * 10000.0 ** (-torch.arange(half) / half)
        self.cos, self.sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)

    def forward(self, ids, targets):
        x, total = self.embedding(ids.flatten()), 0.0
        for block in self.blocks:
            x, aux = block(x, self.cos, self.sin)
            total = total + aux
        return F.cross_entropy(self.head(norm(x, self.norm)), targets.flatten()) + total


class Peer:
    def __init__(self, name, grouped):
        torch.manual_seed(1)
        self.name, self.times, self.model = name, [], Model(grouped)
        for p in self.model.parameters():
            if p.dim() == 2:
                torch.nn.init.normal_(p, std=0.02)
        decay = [p for p in self.model.parameters() if p.dim() > 1]
        rest = [p for p in self.model.parameters() if p.dim() == 1]
        self.optimizer = torch.optim.AdamW([{"params": decay}, {"params": rest, "weight_decay": 0.0}], lr=1e-4,
                                           betas=(0.9, 0.95), weight_decay=0.1)

    def step(self, ids, targets):
        self.optimizer.zero_grad()
        loss = self.model(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def run(self, ids, targets, steps):
        for _ in range(steps):
            start = time.perf_counter()
            self.step(ids, targets)
            self.times.append(time.perf_counter() - start)


def ours(program, dtype, steps):
    command = [program, "bench", "train", "--dtype", dtype, "-r", str(steps), "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["results"][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dsmoe", help="the program to run in turn with PyTorch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="steps of a round")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    generator = torch.Generator().manual_seed(2)
    ids, targets = (torch.randint(V, (BATCH, SEQ), generator=generator) for _ in range(2))
    peers = [Peer("PyTorch, loop over experts", False), Peer("PyTorch, grouped", True)]
    for _ in range(2):  # to warm up, and to compare
        losses = [peer.step(ids, targets) for peer in peers]
        if abs(losses[0] - losses[1]) > 1e-4:
            sys.exit(f"train_step.py: the peers disagree: losses {losses}")
    results = {"f32": [], "bf16": []}
    for _ in range(options.rounds):
        for peer in peers:
            peer.run(ids, targets, options.steps)
        if options.dsmoe:
            for dtype, list_ in results.items():
                list_.append(ours(options.dsmoe, dtype, options.steps))

    rows = [(peer.name, BATCH * SEQ / statistics.median(peer.times)) for peer in peers]
    for dtype, list_ in results.items():
        if list_:
            rate = statistics.median(r["tokens_per_second"] for r in list_)
            rows.append((f"dsmoe, {dtype}, {100 * statistics.median(r['share_of_peak'] for r in list_):.0f}% of the peak", rate))
    print(f"PyTorch {torch.__version__}, {options.threads} threads, medians of {options.rounds} rounds in turn")
    for name, rate in rows:
        print(f"  {name:34} {rate:7.0f} tok/s   x{rate / rows[0][1]:.2f} of the loop   x{rate / rows[1][1]:.2f} of grouped")


if __name__ == "__main__":
    main()
