#!/usr/bin/env python3
"""Compares what dsmoe plan says of a step of two ranks with what such steps take on this machine: plan_check.py BUILD_DIR

The build has MPI, the machine two cores or more and nothing else to do. One process of one thread says what a core reaches, and steps of
the smallest batch say what is left for the link: with these two numbers and how busy the busiest expert was, each other step is planned
and run. Exits with 1 when one of them takes more than 20% less or more than planned.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

MPIRUN = ("mpirun --allow-run-as-root --oversubscribe --bind-to none --mca btl self,vader --mca btl_vader_single_copy_mechanism none "
          "--mca plm isolated -n 2").split()
SKIPPED = 4  # steps that warm up


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", help="folder of a build with MPI")
    parser.add_argument("--model", default="--preset tiny", help="what train and plan are given: --preset NAME or --config FILE")
    parser.add_argument("--length", type=int, default=256, help="tokens of a sequence")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batches", default="4,16", help="sequences of a step; the first says what the link is")
    parser.add_argument("--layouts", default="1,2", help="numbers of ranks that the experts are spread over")
    return parser.parse_args()


def main():
    o = options()
    program = os.path.join(os.path.abspath(o.build), "bin", "dsmoe")
    batches = [int(b) for b in o.batches.split(",")]

    def measured(batch, group):
        """Seconds of a step and the load of the busiest expert, as medians. group 0: one process."""
        with tempfile.TemporaryDirectory() as folder:
            words = [program, "train", "-o", os.path.join(folder, "run"), *o.model.split(), "--dtype", "bf16", "--threads", "1", "--seq-len",
                     str(o.length), "--batch-size", str(batch), "--steps", str(o.steps), "--holdout", "0", "--eval-every", "0", "--save-every",
                     "0"]
            if group > 0:
                words = MPIRUN + words + ["--no-overlap", "--expert-parallel", str(group)]
            ran = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            if ran.returncode != 0:
                sys.exit(ran.stderr)
            with open(os.path.join(folder, "run", "log.jsonl")) as log:
                steps = [json.loads(line) for line in log][SKIPPED:]
        return (statistics.median(batch * o.length / s["tokens_per_second"] for s in steps),
                statistics.median(s["expert_load_max"] for s in steps))

    def planned(batch, group, speed, link, busiest):
        words = [program, "plan", *o.model.split(), "--ranks", "2", "--expert-parallel", str(group), "--context", str(o.length), "--batch-size",
                 str(batch), "--device", f"{speed / 1e9:.2f}GFLOPS", "--link", f"{link:.0f}", "--expert-load-max", f"{busiest:.3f}", "--json"]
        return json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)

    alone = measured(max(batches) // 2, 0)[0]
    about = planned(batches[0], 1, 1e9, 1e9, 1)
    speed = about["training_flops_per_token"] * (max(batches) // 2) * o.length / alone
    compute = about["training_flops_per_token"] * batches[0] * o.length / 2 / speed
    # Where ranks share the gradients of all, this is all that they send.
    left = measured(batches[0], 1)[0] - compute
    link = about["training_by_ranks"]["bf16"]["bytes_sent_per_step"]["gradients"] / max(left, 0.02 * compute)
    print(f"{speed / 1e9:.0f} GFLOP/s, {link / 1e9:.2f} GB/s\nbatch experts over  planned  if used alike  measured")
    worst = 0
    for group in (int(g) for g in o.layouts.split(",")):
        for batch in batches:
            seconds, busiest = measured(batch, group)
            plan = planned(batch, group, speed, link, busiest)["training_by_ranks"]["on_cards"]["step_seconds"]
            total, even = plan["total"], plan["total"] - plan["uneven"]
            worst = max(worst, abs(seconds / total - 1))
            print(f"{batch:5} {group:12} {1e3 * total:5.1f} ms {1e3 * even:11.1f} ms {1e3 * seconds:6.1f} ms  {seconds / total:.2f}")
    return 1 if worst > 0.2 else 0


if __name__ == "__main__":
    sys.exit(main())
