#!/usr/bin/env python3
"""The tables of docs/paper.md from the runs of a comparison: tables.py RUNS..., where RUNS are folders of dsmoe compare (their
runs/NAME-seedN/outcome.json). Intervals are 95% by Student's t, of differences between runs with the same seed."""
import json
import math
import pathlib
import re
import sys

T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}  # two-sided, by the number of seeds
NAMES = {"a-conventional": "(a) conventional, 0 + 2 of 16", "b-fine-grained": "(b) fine-grained, 0 + 8 of 64",
         "c-deepseekmoe": "(c) DeepSeekMoE, 1 + 7 of 63", "dense": "dense", "2+6-62": "2 + 6 of 62", "4+4-60": "4 + 4 of 60",
         "1+3-31": "1 + 3 of 31", "1+1-15": "1 + 1 of 15", "0+2-16x1.5": "0 + 2 of 16, 1.5 times as wide",
         "1+3-63": "1 + 3 of 63"}


def read(folders):
    runs = {}
    for folder in folders:
        for path in sorted(pathlib.Path(folder).glob("runs/*/outcome.json")):
            name, seed = re.fullmatch(r"(.*)-seed(\d+)", path.parent.name).groups()
            runs.setdefault(name, {})[int(seed)] = json.loads(path.read_text())
    return {name: runs[name] for name in NAMES if name in runs}


def mean_sd(values):
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else math.nan


def interval(values):
    mean, sd = mean_sd(values)
    margin = T95[len(values)] * sd / math.sqrt(len(values)) if len(values) in T95 else math.nan
    clear = "yes" if abs(mean) > margin else "no"
    return f"{mean:+.4f} | {mean - margin:+.4f} to {mean + margin:+.4f} | {clear}"


def losses(runs):
    seeds = sorted({s for one in runs.values() for s in one})
    print("| held-out loss | mean | sd |" + "".join(f" seed {s} |" for s in seeds))
    print("|---" * (3 + len(seeds)) + "|")
    for name, one in runs.items():
        mean, sd = mean_sd([o["loss"] for o in one.values()])
        cells = [f"{one[s]['loss']:.4f}" if s in one else "" for s in seeds]
        print(f"| {NAMES[name]} | {mean:.4f} | {sd:.4f} | " + " | ".join(cells) + " |")


def differences(runs, pairs):
    print("| | against | seeds | difference | 95% interval | clear of the spread |\n|---|---|---|---|---|---|")
    for a, b in pairs:
        if a not in runs or b not in runs:
            continue
        seeds = sorted(set(runs[a]) & set(runs[b]))
        if len(seeds) > 1:
            print(f"| {NAMES[a]} | {NAMES[b]} | {len(seeds)} | {interval([runs[a][s]['loss'] - runs[b][s]['loss'] for s in seeds])} |")


def curves(runs):
    print("| tokens |" + "".join(f" {NAMES[n]} |" for n in runs) + "\n" + "|---" * (1 + len(runs)) + "|")
    for i, (tokens, _) in enumerate(next(iter(next(iter(runs.values())).values()))["curve"]):
        print(f"| {tokens / 1e6:.1f} M | " + " | ".join(f"{mean_sd([o['curve'][i][1] for o in one.values()])[0]:.4f}"
                                                       for one in runs.values()) + " |")


def domains(runs):
    print("| domain |" + "".join(f" {NAMES[n]} |" for n in runs) + "\n" + "|---" * (1 + len(runs)) + "|")
    for i, (domain, _) in enumerate(next(iter(next(iter(runs.values())).values()))["domains"]):
        print(f"| {domain} | " + " | ".join(f"{mean_sd([o['domains'][i][1] for o in one.values()])[0]:.3f}"
                                           for one in runs.values()) + " |")


def ablations(runs):
    print("| model | ablation | loss | change | sd |\n|---|---|---|---|---|")
    for name, one in runs.items():
        first = next(iter(one.values()))
        for i, ablation in enumerate(first["ablations"]):
            each = [o["ablations"][i]["loss_sum"] / o["ablations"][i]["predicted"] for o in one.values()]
            base = [o["ablations"][0]["loss_sum"] / o["ablations"][0]["predicted"] for o in one.values()]
            mean, sd = mean_sd([x - y for x, y in zip(each, base)])
            change = f"{mean:+.3f} | {sd:.3f}" if i else " | "
            print(f"| {NAMES[name]} | {ablation['label']} | {mean_sd(each)[0]:.3f} | {change} |")


def loss_of(outcome, label):
    """With the first ablation whose label begins so, on the sequences of the ablations."""
    for ablation in outcome["ablations"]:
        if ablation["label"].startswith(label):
            return ablation["loss_sum"] / ablation["predicted"]
    return math.nan


def against_conventional(runs):
    """Section 4.5: (c) with fewer routed experts beside (a) as it is, and what the first mask costs each."""
    a, c = runs["a-conventional"], runs["c-deepseekmoe"]
    seeds = sorted(set(a) & set(c))
    print("| | difference | 95% interval | clear of the spread |\n|---|---|---|---|")
    for label in ("as it is", "5 routed", "4 routed", "2 routed"):
        print(f"| (c), {label}, minus (a) as it is | {interval([loss_of(c[s], label) - loss_of(a[s], 'as it is') for s in seeds])} |")
    for other in ("a-conventional", "b-fine-grained"):
        cost = [loss_of(c[s], "top 1/16") - loss_of(c[s], "as it is") - loss_of(runs[other][s], "top 1/16")
                + loss_of(runs[other][s], "as it is") for s in seeds]
        print(f"| what masking 1/16 costs (c), minus what it costs {NAMES[other]} | {interval(cost)} |")


def routing(runs):
    print("| | evenness of the load | domain bits | sets of experts seen |\n|---|---|---|---|")
    for name, one in runs.items():
        if next(iter(one.values()))["ablations"]:
            cells = [mean_sd([o[key] for o in one.values()]) for key in ("evenness", "domain_bits", "sets_seen")]
            print(f"| {NAMES[name]} | {cells[0][0]:.3f} ± {cells[0][1]:.3f} | {cells[1][0]:.3f} ± {cells[1][1]:.3f} | {cells[2][0]:,.0f} |")


def main():
    runs = read(sys.argv[1:])
    if not runs:
        sys.exit("tables.py: no outcome.json there; give folders of dsmoe compare")
    a, b, c, dense = "a-conventional", "b-fine-grained", "c-deepseekmoe", "dense"
    for title, table in (("losses", losses), ("curves", curves), ("domains", domains), ("ablations", ablations),
                         ("fewer experts and masks", against_conventional), ("routing", routing)):
        print(f"\n{title}\n")
        table(runs)
    print("\ndifferences\n")
    differences(runs, [(a, dense), (b, a), (c, b), (c, a), (c, dense), (b, dense), ("1+1-15", a), ("1+3-31", "1+1-15"), (c, "1+3-31"),
                       ("2+6-62", c), ("4+4-60", c), ("0+2-16x1.5", c), ("0+2-16x1.5", a), ("1+3-63", a), ("1+3-63", c)])


if __name__ == "__main__":
    main()
